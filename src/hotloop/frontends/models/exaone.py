"""exaone: EXAONE 3 and 3.5; Llama under other names."""

from dataclasses import replace

from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder

#: Keys of published configs → the usual ones, which newer transformers write.
_USUAL = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.gated_ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    metadata = {_USUAL.get(key, key): value for key, value in fields.file.metadata.items()}
    fields = Fields(replace(fields.file, metadata=metadata))
    fields.expect(hidden_act="silu")
    return read_config(fields, pairing="half")


FAMILY = Family(
    ("exaone",),
    config,
    layer,
    {
        "transformer.wte": "token_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "transformer.h.{i}.ln_1": "blk.{i}.attn_norm",
        "transformer.h.{i}.ln_2": "blk.{i}.ffn_norm",
        "transformer.h.{i}.attn.attention.q_proj": "blk.{i}.attn_q",
        "transformer.h.{i}.attn.attention.k_proj": "blk.{i}.attn_k",
        "transformer.h.{i}.attn.attention.v_proj": "blk.{i}.attn_v",
        "transformer.h.{i}.attn.attention.out_proj": "blk.{i}.attn_output",
        "transformer.h.{i}.mlp.c_fc_0": "blk.{i}.ffn_gate",
        "transformer.h.{i}.mlp.c_fc_1": "blk.{i}.ffn_up",
        "transformer.h.{i}.mlp.c_proj": "blk.{i}.ffn_down",
    },
    unread=("rotary_emb.inv_freq", "rotary.inv_freq"),
)
