"""granite: Granite 3.x, dense; a llama whose parts are multiplied by constants."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="interleaved" if fields.gguf else "half")
    attention = config.attention_scale
    return replace(
        config,
        embedding_scale=fields.get("embedding_scale", "embedding_multiplier", float, 1.0),
        residual_scale=fields.get("residual_scale", "residual_multiplier", float, 1.0),
        attention_scale=fields.get("attention.scale", "attention_multiplier", float, attention),
        logit_scale=1 / fields.get("logit_scale", "logits_scaling", float, 1.0),
    )


FAMILY = Family(("granite",), config, layer, names.LLAMA)
