"""llama: Llama 1 to 3.x, Mistral, Mixtral, SmolLM2, and what else says it is one."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import (
    Config,
    Fields,
    local_layers,
    read_config,
    read_experts,
    windows_of,
)
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    # GGUF's converter reorders the rows of attn_q and attn_k, so that neighbours rotate together.
    config = read_config(fields, pairing="interleaved" if fields.gguf else "half")
    mixture = fields.get("expert_count", "num_local_experts", int, 0)
    return replace(
        config,
        windows=windows_of(fields, local_layers(fields, config.layers, 0)),
        experts=read_experts(fields, ffn="intermediate_size") if mixture else None,
    )


FAMILY = Family(
    ("llama", "mistral", "mixtral"),
    config,
    layer,
    names.LLAMA
    | {
        "model.layers.{i}.block_sparse_moe.gate": "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1": "blk.{i}.ffn_gate_exps.{e}",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2": "blk.{i}.ffn_down_exps.{e}",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3": "blk.{i}.ffn_up_exps.{e}",
    },
)
