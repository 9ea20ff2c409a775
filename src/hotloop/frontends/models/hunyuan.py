"""hunyuan: Hunyuan, dense (0.5B to 7B, and the translators); heads are normalised once turned."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.rope import Rope, base_frequencies
from hotloop.util.errors import ModelFileError


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(build.norm(x, "attn_norm"))
    q, k = build.rope(q), build.rope(k)
    q, k = build.head_norm(q, "attn_q_norm"), build.head_norm(k, "attn_k_norm")
    x = build.add(x, build.attn_output(build.attention(q, k, v)), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    return config if fields.gguf else replace(config, ropes=(_stretched(fields, config),))


def _stretched(fields: Fields, config: Config) -> Rope:
    """RoPE with the base stretched by `alpha`, fixed though it is called dynamic.

    With d elements in a head, θ becomes θ · alpha^(d / (d - 2)); GGUF's converter writes it so.
    """
    file, none = fields.file, dict[str, object]()
    scaling = file.optional("rope_scaling", dict, none)
    section = file.optional("rope_parameters", dict, scaling)
    alpha, dims = section.get("alpha"), config.ropes[0].dims
    if not alpha:
        return config.ropes[0]
    theta = section.get("rope_theta") or file.optional("rope_theta", float, 10000.0)
    if not isinstance(alpha, int | float) or not 0 < alpha < 1e9 or dims < 4:
        raise ModelFileError(f"{file.path}: RoPE's alpha is {alpha!r:.40}; check the config.json.")
    return Rope(tuple(base_frequencies(theta * alpha ** (dims / (dims - 2)), dims).tolist()))


FAMILY = Family(
    ("hunyuan_v1_dense", "hunyuan-dense"),
    config,
    layer,
    names.LLAMA
    | {
        "model.layers.{i}.self_attn.query_layernorm": "blk.{i}.attn_q_norm",
        "model.layers.{i}.self_attn.key_layernorm": "blk.{i}.attn_k_norm",
    },
)
