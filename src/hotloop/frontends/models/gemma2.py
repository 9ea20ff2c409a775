"""gemma2: Gemma 2; every other layer sees a window, scores and logits are capped, four norms."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, local_layers, read_config, windows_of
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import add_one_to_norms


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    attended = build.self_attention(build.norm(x, "attn_norm"))
    x = build.add(x, build.norm(attended, "post_attention_norm"), to="mid")
    ffn = build.gated_ffn(build.norm(x, "ffn_norm"), "geglu", form="tanh")
    return build.add(x, build.norm(ffn, "post_ffw_norm"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_activation="gelu_pytorch_tanh")
    config = read_config(fields, pairing="half")
    # GGUF doesn't say what queries are scaled by: of the three sizes, 27B has its own rule.
    scaled = config.width // config.heads if config.layers == 46 else config.head_dim
    queries = fields.get("", "query_pre_attn_scalar", float, float(scaled))
    return replace(
        config,
        windows=windows_of(fields, local_layers(fields, config.layers, 2)),
        embedding_scale=config.width**0.5,
        attention_scale=fields.get("attention.scale", "", float, queries**-0.5),
        attention_softcap=_cap(fields, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(fields, "final_logit_softcapping", 30.0),
    )


def _cap(fields: Fields, key: str, usual: float) -> float:
    """Files from before the key have the usual cap; null says that there is none."""
    return fields.get(key, key, float, 0.0 if key in fields.file.metadata else usual)


FAMILY = Family(
    ("gemma2",),
    config,
    layer,
    names.ENDS | names.ATTENTION | names.FOUR_NORMS | names.GATED_FFN,
    add_one_to_norms,
)
