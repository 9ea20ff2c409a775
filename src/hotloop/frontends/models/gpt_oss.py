"""gpt_oss: gpt-oss; attention sinks, every other layer with a window, biases, a clamped SwiGLU."""

from collections.abc import Callable
from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import (
    Config,
    Fields,
    local_layers,
    read_config,
    read_experts,
    windows_of,
)
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.experts import rows_of_experts, transposed_experts
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.weights import Tensors, columns_of

ALPHA, LIMIT = 1.702, 7.0
EVEN, ODD, ALL = slice(0, None, 2), slice(1, None, 2), slice(None)


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    h = build.norm(x, "post_attention_norm")
    return build.add(x, build.experts(h, "swiglu_clamped", alpha=ALPHA, limit=LIMIT), to="out")


def config(fields: Fields) -> Config:
    fields.expect(swiglu_alpha=ALPHA, swiglu_limit=LIMIT)
    config = read_config(fields, pairing="half", truncate=False)
    experts = read_experts(fields, ffn="intermediate_size")
    if fields.gguf:
        width = fields.get("expert_feed_forward_length", "", int, experts.ffn)
        experts = replace(experts, ffn=width)
    return replace(
        config,
        windows=windows_of(fields, local_layers(fields, config.layers, 2)),
        experts=experts,
    )


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """Hugging Face has the rows of gate and up in turns, and experts transposed unless in MXFP4."""
    for i in [] if gguf else range(config.layers):
        sinks = tensors.pop(f"model.layers.{i}.self_attn.sinks", None)
        if sinks is not None:
            tensors[f"blk.{i}.attn_sinks.weight"] = sinks
        for source, parts in _PARTS.items():
            weight = tensors.pop(f"model.layers.{i}.mlp.experts.{source}", None)
            if weight is None:
                continue
            make = columns_of if source.endswith("bias") else _experts(weight)
            for part, rows in parts.items():
                name = f"blk.{i}.{part}"
                tensors[name] = make(weight, name, rows)


def _experts(weight: WeightData) -> Callable[[WeightData, str, slice], WeightData]:
    return rows_of_experts if weight.type.format.name == "mxfp4" else transposed_experts


_PARTS = {
    "gate_up_proj": {"ffn_gate_exps.weight": EVEN, "ffn_up_exps.weight": ODD},
    "gate_up_proj_bias": {"ffn_gate_exps.bias": EVEN, "ffn_up_exps.bias": ODD},
    "down_proj": {"ffn_down_exps.weight": ALL},
    "down_proj_bias": {"ffn_down_exps.bias": ALL},
}

FAMILY = Family(
    ("gpt_oss", "gpt-oss"),
    config,
    layer,
    names.ENDS
    | names.ATTENTION
    | {
        "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
        "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
        "model.layers.{i}.mlp.router": "blk.{i}.ffn_gate_inp",
    },
    adapt,
)
