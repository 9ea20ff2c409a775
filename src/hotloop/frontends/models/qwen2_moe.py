"""qwen2_moe: Qwen 1.5 and 2, mixture of experts; a shared expert with a gate of its own."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, late_windows, read_config, read_experts
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import Tensors, as_matrix


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    shared = ("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
    experts = read_experts(fields, count="num_experts", normalise=False)
    return replace(
        config,
        windows=late_windows(fields, config.layers),
        experts=replace(experts, shared=fields.need(*shared, int)),
    )


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """GGUF stores the shared expert's router, which has one row, as a vector."""
    for i in range(config.layers):
        as_matrix(tensors, f"blk.{i}.ffn_gate_inp_shexp.weight")


FAMILY = Family(
    ("qwen2_moe", "qwen2moe"),
    config,
    layer,
    names.LLAMA
    | names.EXPERTS
    | {
        "model.layers.{i}.mlp.shared_expert.gate_proj": "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.mlp.shared_expert.up_proj": "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.mlp.shared_expert.down_proj": "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.mlp.shared_expert_gate": "blk.{i}.ffn_gate_inp_shexp",
    },
    adapt,
)
