"""phi: Phi 1, 1.5 and 2; attention and feed-forward net side by side, biases, partial RoPE."""

from dataclasses import replace

from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import Tensors, split_rows


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    h = build.norm(x, "attn_norm")
    mid = build.add(x, build.self_attention(h), to="mid")
    return build.add(mid, build.plain_ffn(h, "tanh"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="gelu_new", qk_layernorm=False)
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    return replace(read_config(fields, pairing="half", eps=eps, rotated=0.5), norm="layer_norm")


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """Queries, keys and values are one tensor in older GGUF files."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for i in range(config.layers):
        for kind in ("weight", "bias"):
            rows = dict(zip("qkv", (q, kv, kv), strict=True))
            parts = {f"blk.{i}.attn_{part}.{kind}": n for part, n in rows.items()}
            split_rows(tensors, f"blk.{i}.attn_qkv.{kind}", parts)


FAMILY = Family(
    ("phi", "phi2"),
    config,
    layer,
    {
        "model.embed_tokens": "token_embd",
        "model.final_layernorm": "output_norm",
        "lm_head": "output",
        "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
        "model.layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "model.layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
        "model.layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
        "model.layers.{i}.self_attn.dense": "blk.{i}.attn_output",
        "model.layers.{i}.mlp.fc1": "blk.{i}.ffn_up",
        "model.layers.{i}.mlp.fc2": "blk.{i}.ffn_down",
    },
    adapt,
)
