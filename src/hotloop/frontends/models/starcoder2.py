"""starcoder2: StarCoder 2; layer norms and biases throughout, a plain feed-forward net, windows."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, local_layers, read_config, windows_of
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.plain_ffn(build.norm(x, "ffn_norm"), "tanh"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="gelu_pytorch_tanh")
    eps = ("attention.layer_norm_epsilon", "norm_epsilon")
    config = read_config(fields, pairing="half", eps=eps)
    windows = windows_of(fields, local_layers(fields, config.layers, 0))
    return replace(config, norm="layer_norm", windows=windows)


FAMILY = Family(
    ("starcoder2",),
    config,
    layer,
    names.ENDS
    | names.PRE_NORMS
    | names.ATTENTION
    | {
        "model.layers.{i}.mlp.c_fc": "blk.{i}.ffn_up",
        "model.layers.{i}.mlp.c_proj": "blk.{i}.ffn_down",
    },
)
