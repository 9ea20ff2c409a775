"""olmoe: OLMoE; a mixture of experts, and norms over all queries and all keys of a token."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config, read_experts
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(build.norm(x, "attn_norm"))
    q, k = build.norm(q, "attn_q_norm"), build.norm(k, "attn_k_norm")
    attended = build.attention(build.rope(q), build.rope(k), v)
    x = build.add(x, build.attn_output(attended), to="mid")
    return build.add(x, build.ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu", clip_qkv=None)
    config = read_config(fields, pairing="half")
    experts = read_experts(fields, count="num_experts", ffn="intermediate_size", normalise=False)
    return replace(config, experts=experts)


FAMILY = Family(("olmoe",), config, layer, names.LLAMA | names.Q_K_NORM | names.EXPERTS)
