"""glm4: GLM 4 (0414); partial RoPE of neighbours, four norms, a fused gate and up."""

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import Tensors, split_rows


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    attended = build.self_attention(build.norm(x, "attn_norm"))
    x = build.add(x, build.norm(attended, "post_attention_norm"), to="mid")
    ffn = build.gated_ffn(build.norm(x, "ffn_norm"))
    return build.add(x, build.norm(ffn, "post_ffw_norm"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    return read_config(fields, pairing="interleaved", rotated=0.5)


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    for i in range(config.layers):
        both = [f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight"]
        split_rows(tensors, f"blk.{i}.ffn_up.weight", dict.fromkeys(both, config.ffn))


FAMILY = Family(
    ("glm4",),
    config,
    layer,
    names.ENDS
    | names.ATTENTION
    | {
        "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
        "model.layers.{i}.post_self_attn_layernorm": "blk.{i}.post_attention_norm",
        "model.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
        "model.layers.{i}.post_mlp_layernorm": "blk.{i}.post_ffw_norm",
        "model.layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
        "model.layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
    },
    adapt,
)
