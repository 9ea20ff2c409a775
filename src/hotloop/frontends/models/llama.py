"""llama: Llama 1 to 3.x, Mistral, SmolLM2, and what else says it is one."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, local_layers, read_config, windows_of
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    # GGUF's converter reorders the rows of attn_q and attn_k, so that neighbours rotate together.
    config = read_config(fields, pairing="interleaved" if fields.gguf else "half")
    return replace(config, windows=windows_of(fields, local_layers(fields, config.layers, 0)))


FAMILY = Family(("llama", "mistral"), config, layer, names.LLAMA)
