"""gemma: Gemma 1; a scaled embedding, norms that multiply by 1 + weight, GeGLU."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import add_one_to_norms


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    ffn = build.gated_ffn(build.norm(x, "ffn_norm"), "geglu", form="tanh")
    return build.add(x, ffn, to="out")


def config(fields: Fields) -> Config:
    # The first configs say gelu, where transformers computes the approximation all the same.
    config = read_config(fields, pairing="half")
    return replace(config, embedding_scale=config.width**0.5)


FAMILY = Family(("gemma",), config, layer, names.LLAMA, add_one_to_norms)
