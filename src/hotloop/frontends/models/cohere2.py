"""cohere2: Command R7B and Command A; three layers with a window and RoPE for one with neither."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import (
    Config,
    Fields,
    local_layers,
    read_config,
    windows_of,
    with_ropes,
)
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    h = build.norm(x, "attn_norm")
    mid = build.add(x, build.self_attention(h), to="mid")
    return build.add(mid, build.gated_ffn(h), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu", use_gated_activation=True, use_parallel_block=True)
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    config = read_config(fields, pairing="interleaved", eps=eps)
    local = local_layers(fields, config.layers, 4)
    config = replace(
        config,
        norm="layer_norm",
        windows=windows_of(fields, local),
        logit_scale=fields.get("logit_scale", "logit_scale", float, 0.0625),
    )
    return with_ropes(config, local)


FAMILY = Family(
    ("cohere2",),
    config,
    layer,
    names.ENDS
    | names.ATTENTION
    | names.GATED_FFN
    | {"model.layers.{i}.input_layernorm": "blk.{i}.attn_norm"},
)
