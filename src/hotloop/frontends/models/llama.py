"""llama: Llama 1 to 3.x, SmolLM2, and what else says it is one."""

from typing import Any

from hotloop.frontends import rope_scaling
from hotloop.frontends.decoder import Config, Family, LayerBuilder, is_gguf
from hotloop.frontends.model_file import ModelFile
from hotloop.ir.formats import dequantise
from hotloop.util.errors import UnsupportedError


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    h = build.norm(x, "attn_norm")
    q = build.linear(h, "attn_q", config.heads * config.head_dim, to="q")
    k = build.linear(h, "attn_k", config.kv_heads * config.head_dim, to="k")
    v = build.linear(h, "attn_v", config.kv_heads * config.head_dim, to="v")
    a = build.attention(build.rope(q), build.rope(k), v)
    o = build.linear(a, "attn_output", config.width)
    x = build.op("add", x, o, to="mid")
    h = build.norm(x, "ffn_norm")
    gate = build.linear(h, "ffn_gate", config.ffn)
    up = build.linear(h, "ffn_up", config.ffn)
    down = build.linear(build.op("swiglu", gate, up), "ffn_down", config.width)
    return build.op("add", x, down, to="out")


def config(file: ModelFile) -> Config:
    return _gguf_config(file) if is_gguf(file) else _hf_config(file)


def _gguf_config(file: ModelFile) -> Config:
    width = file.require("llama.embedding_length", int)
    heads = file.require("llama.attention.head_count", int)
    head_dim = file.optional("llama.attention.key_length", int, width // max(1, heads))
    if file.optional("llama.rope.dimension_count", int, head_dim) != head_dim:
        raise UnsupportedError(f"{file.path} rotates only a part of each head (partial RoPE).")
    if file.optional("llama.expert_count", int, 0):
        raise UnsupportedError(f"{file.path} is a mixture of experts; hotloop runs dense ones.")
    scales = None
    if "rope_freqs.weight" in file.tensors:
        stored = file.tensors["rope_freqs.weight"]
        scales = tuple(dequantise(stored.data, stored.type).reshape(-1).tolist())
    elif (kind := file.optional("llama.rope.scaling.type", str, "none")) != "none":
        factor = file.require("llama.rope.scaling.factor", float)
        theta = file.optional("llama.rope.freq_base", float, 10000.0)
        scales = rope_scaling.scales(file, {"type": kind, "factor": factor}, head_dim, theta)
    return Config(
        layers=file.require("llama.block_count", int),
        width=width,
        heads=heads,
        kv_heads=file.optional("llama.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        ffn=file.require("llama.feed_forward_length", int),
        vocab=_rows(file, "token_embd.weight"),
        context=file.require("llama.context_length", int),
        eps=file.require("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=file.optional("llama.rope.freq_base", float, 10000.0),
        rope_scales=scales,
        pairing="interleaved",
    )


def _rows(file: ModelFile, name: str) -> int:
    """Rows of a tensor; 0, which no config may have, where it is missing or has none."""
    weight = file.tensors.get(name)
    return weight.type.shape[0] if weight else 0


def _hf_config(file: ModelFile) -> Config:
    for key, wanted in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if file.metadata.get(key, wanted) != wanted:
            raise UnsupportedError(f"{file.path}: {key} is {file.metadata[key]!r}, not {wanted!r}.")
    width = file.require("hidden_size", int)
    heads = file.require("num_attention_heads", int)
    head_dim = file.optional("head_dim", int, width // max(1, heads))
    none: dict[str, Any] = {}
    rope = file.optional("rope_parameters", dict, None) or file.optional("rope_scaling", dict, none)
    theta = float(rope.get("rope_theta") or file.optional("rope_theta", float, 10000.0))
    return Config(
        layers=file.require("num_hidden_layers", int),
        width=width,
        heads=heads,
        kv_heads=file.optional("num_key_value_heads", int, heads),
        head_dim=head_dim,
        ffn=file.require("intermediate_size", int),
        vocab=file.require("vocab_size", int),
        context=file.optional("max_position_embeddings", int, 2048),
        eps=file.optional("rms_norm_eps", float, 1e-6),
        rope_theta=theta,
        rope_scales=rope_scaling.scales(file, rope, head_dim, theta),
        pairing="half",
    )


FAMILY = Family(
    architecture="llama",
    config=config,
    layer=layer,
    hf_names={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
        "model.layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
        "model.layers.{i}.self_attn.k_proj.weight": "blk.{i}.attn_k.weight",
        "model.layers.{i}.self_attn.v_proj.weight": "blk.{i}.attn_v.weight",
        "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
        "model.layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
        "model.layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
        "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
    },
    gguf_only=("rope_freqs.weight",),
)
