"""qwen3: Qwen 3, dense; the heads of queries and keys are normalised."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, late_windows, read_config
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(build.norm(x, "attn_norm"))
    q, k = build.head_norm(q, "attn_q_norm"), build.head_norm(k, "attn_k_norm")
    attended = build.attention(build.rope(q), build.rope(k), v)
    x = build.add(x, build.attn_output(attended), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    return replace(config, windows=late_windows(fields, config.layers))


FAMILY = Family(("qwen3",), config, layer, names.LLAMA | names.Q_K_NORM)
