"""exaone4: EXAONE 4; norms after attention and feed-forward net, RoPE where there is a window."""

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
    q, k, v = build.qkv(x)
    q, k = build.head_norm(q, "attn_q_norm"), build.head_norm(k, "attn_k_norm")
    attended = build.attn_output(build.attention(build.rope(q), build.rope(k), v))
    x = build.add(x, build.norm(attended, "post_attention_norm"), to="mid")
    return build.add(x, build.norm(build.gated_ffn(x), "post_ffw_norm"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    local = local_layers(fields, config.layers, 4)
    windows = windows_of(fields, local)
    # The small model has no windows at all, and RoPE in every layer.
    return with_ropes(replace(config, windows=windows), local if any(windows) else [True])


FAMILY = Family(
    ("exaone4",),
    config,
    layer,
    names.ENDS | names.ATTENTION | names.Q_K_NORM | names.POST_NORMS | names.GATED_FFN,
)
