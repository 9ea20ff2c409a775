"""olmo2: OLMo 2; norms come after attention and feed-forward net, and queries and keys have one."""

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(x)
    q, k = build.norm(q, "attn_q_norm"), build.norm(k, "attn_k_norm")
    attended = build.attention(build.rope(q), build.rope(k), v)
    x = build.add(x, build.norm(build.attn_output(attended), "post_attention_norm"), to="mid")
    return build.add(x, build.norm(build.gated_ffn(x), "post_ffw_norm"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    return read_config(fields, pairing="half")


FAMILY = Family(
    ("olmo2",),
    config,
    layer,
    names.ENDS | names.ATTENTION | names.Q_K_NORM | names.POST_NORMS | names.GATED_FFN,
)
