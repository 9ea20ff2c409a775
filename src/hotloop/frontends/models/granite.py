"""granite: Granite 3.x, dense or a mixture of experts; some sums are multiplied by constants."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, read_config, read_experts
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.experts import rows_of_experts
from hotloop.frontends.weights import Tensors


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    x = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    return build.add(x, build.ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="interleaved" if fields.gguf else "half")
    attention = config.attention_scale
    mixture = fields.get("expert_count", "num_local_experts", int, 0)
    return replace(
        config,
        embedding_scale=fields.get("embedding_scale", "embedding_multiplier", float, 1.0),
        residual_scale=fields.get("residual_scale", "residual_multiplier", float, 1.0),
        attention_scale=fields.get("attention.scale", "attention_multiplier", float, attention),
        logit_scale=1 / fields.get("logit_scale", "logits_scaling", float, 1.0),
        experts=read_experts(fields, ffn="intermediate_size") if mixture else None,
    )


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """Hugging Face has gate and up of all experts in one tensor, one above the other."""
    if gguf or not config.experts:
        return
    for i in range(config.layers):
        gate, up = f"blk.{i}.ffn_gate_exps.weight", f"blk.{i}.ffn_up_exps.weight"
        both, ffn = tensors.pop(f"blk.{i}.ffn_both_exps.weight", None), config.experts.ffn
        if both is not None:
            tensors[gate] = rows_of_experts(both, gate, slice(0, ffn))
            tensors[up] = rows_of_experts(both, up, slice(ffn, None))


FAMILY = Family(
    ("granite", "granitemoe"),
    config,
    layer,
    names.LLAMA
    | {
        "model.layers.{i}.block_sparse_moe.router.layer": "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.input_linear": "blk.{i}.ffn_both_exps",
        "model.layers.{i}.block_sparse_moe.output_linear": "blk.{i}.ffn_down_exps",
    },
    adapt,
)
