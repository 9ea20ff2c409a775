"""qwen2: Qwen 2 and 2.5; queries, keys and values have biases."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, late_windows, read_config
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    return replace(config, windows=late_windows(fields, config.layers))


FAMILY = Family(("qwen2",), config, layer, names.LLAMA)
