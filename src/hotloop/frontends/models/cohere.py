"""cohere: Command R and Aya; attention and feed-forward net side by side, norms without a bias."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    h = build.norm(x, "attn_norm")
    mid = build.add(x, build.self_attention(h), to="mid")
    return build.add(mid, build.gated_ffn(h), to="out")


def config(fields: Fields) -> Config:
    """Command R+, whose heads have layer norms (`use_qk_norm`), is another model."""
    fields.expect(hidden_act="silu", use_qk_norm=False)
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    config = read_config(fields, pairing="interleaved", eps=eps)
    scale = fields.get("logit_scale", "logit_scale", float, 0.0625)
    return replace(config, norm="layer_norm", logit_scale=scale)


FAMILY = Family(
    ("cohere", "command-r"),
    config,
    layer,
    names.ENDS
    | names.ATTENTION
    | names.GATED_FFN
    | {"model.layers.{i}.input_layernorm": "blk.{i}.attn_norm"},
)
