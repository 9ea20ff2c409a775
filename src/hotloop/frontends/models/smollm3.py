"""smollm3: SmolLM 3; every fourth layer has no RoPE."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, late_windows, read_config, with_ropes
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="interleaved" if fields.gguf else "half")
    interval = fields.get("", "no_rope_layer_interval", int, 4)
    usual = [int((i + 1) % interval != 0) for i in range(config.layers)]
    turned = fields.get("", "no_rope_layers", list, usual)  # 1 where there is RoPE
    config = replace(config, windows=late_windows(fields, config.layers))
    return with_ropes(config, [bool(one) for one in turned])


FAMILY = Family(("smollm3",), config, layer, names.LLAMA)
