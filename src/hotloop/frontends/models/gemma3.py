"""gemma3: Gemma 3, text; five layers with a window for one without, which turn by other angles."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, local_layers, read_config, windows_of
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.rope import read_rope
from hotloop.frontends.weights import add_one_to_norms


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(build.norm(x, "attn_norm"))
    q, k = build.head_norm(q, "attn_q_norm"), build.head_norm(k, "attn_k_norm")
    attended = build.attn_output(build.attention(build.rope(q), build.rope(k), v))
    x = build.add(x, build.norm(attended, "post_attention_norm"), to="mid")
    ffn = build.gated_ffn(build.norm(x, "ffn_norm"), "geglu", form="tanh")
    return build.add(x, build.norm(ffn, "post_ffw_norm"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(
        hidden_activation="gelu_pytorch_tanh",
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    config = read_config(fields, pairing="half")
    local = local_layers(fields, config.layers, 6)
    theta = fields.get("rope.freq_base_swa", "rope_local_base_freq", float, 10000.0)
    dims, context = config.ropes[0].dims, config.context
    # GGUF doesn't say what queries are scaled by: of the sizes, 27B has its own rule.
    scaled = config.width // config.heads if config.layers == 62 else config.head_dim
    queries = fields.get("", "query_pre_attn_scalar", float, float(scaled))
    return replace(
        config,
        windows=windows_of(fields, local),
        ropes=(
            read_rope(fields, dims, context, kind="full_attention"),
            read_rope(fields, dims, context, kind="sliding_attention", theta=theta),
        ),
        rope_of=tuple(int(one) for one in local),
        embedding_scale=config.width**0.5,
        attention_scale=fields.get("attention.scale", "", float, queries**-0.5),
    )


FAMILY = Family(
    ("gemma3", "gemma3_text"),
    config,
    layer,
    names.ENDS | names.ATTENTION | names.Q_K_NORM | names.FOUR_NORMS | names.GATED_FFN,
    add_one_to_norms,
)
