"""phi3: Phi 3, 3.5 and 4; fused projections, windows, LongRoPE."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, local_layers, read_config, windows_of
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import Tensors, split_rows


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    return replace(config, windows=windows_of(fields, local_layers(fields, config.layers, 0)))


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """Queries, keys and values are one tensor; so are gate and up, which GGUF calls `ffn_up`."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for i in range(config.layers):
        layer = f"blk.{i}"
        qkv = {f"{layer}.attn_q.weight": q, f"{layer}.attn_k.weight": kv}
        split_rows(tensors, f"{layer}.attn_qkv.weight", qkv | {f"{layer}.attn_v.weight": kv})
        both = {f"{layer}.ffn_gate.weight": config.ffn, f"{layer}.ffn_up.weight": config.ffn}
        split_rows(tensors, f"{layer}.ffn_up.weight", both)


FAMILY = Family(
    ("phi3",),
    config,
    layer,
    names.ENDS
    | names.PRE_NORMS
    | {
        "model.layers.{i}.self_attn.qkv_proj": "blk.{i}.attn_qkv",
        "model.layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
        "model.layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
        "model.layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
    },
    adapt,
)
