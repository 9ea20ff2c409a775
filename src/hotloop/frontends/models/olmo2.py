"""olmo2: OLMo 2 and 3; norms come after attention and net, and queries and keys have one.

OLMo 3 has three layers with a window for one without, and scales RoPE in the latter only.
"""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, local_layers, read_config, windows_of
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.rope import read_rope


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(x)
    q, k = build.norm(q, "attn_q_norm"), build.norm(k, "attn_k_norm")
    attended = build.attention(build.rope(q), build.rope(k), v)
    x = build.add(x, build.norm(build.attn_output(attended), "post_attention_norm"), to="mid")
    return build.add(x, build.norm(build.gated_ffn(x), "post_ffw_norm"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    if not fields.get("attention.sliding_window", "sliding_window", int, 0):
        return config
    local = local_layers(fields, config.layers, 4)
    theta = fields.get("rope.freq_base", "rope_theta", float, 500000.0)
    dims, context = config.ropes[0].dims, config.context
    return replace(
        config,
        windows=windows_of(fields, local),
        ropes=(
            read_rope(fields, dims, context, kind="full_attention"),
            read_rope(fields, dims, context, kind="sliding_attention", theta=theta),
        ),
        rope_of=tuple(int(one) for one in local),
    )


FAMILY = Family(
    ("olmo2", "olmo3"),
    config,
    layer,
    names.ENDS | names.ATTENTION | names.Q_K_NORM | names.POST_NORMS | names.GATED_FFN,
)
