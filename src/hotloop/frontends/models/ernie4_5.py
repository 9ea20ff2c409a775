"""ernie4_5: ERNIE 4.5, dense; Llama with neighbours that rotate together."""

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    return read_config(fields, pairing="interleaved")


FAMILY = Family(("ernie4_5",), config, layer, names.LLAMA)
