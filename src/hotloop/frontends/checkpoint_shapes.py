"""The tensors that a checkpoint on Hugging Face holds, by its `config.json` alone.

For models whose weights are not here: their graph needs only names and shapes. What is written
down is how `transformers` names the modules of each `model_type`; a model with other tensors than
these fails in its family, which checks every name and shape as it does for a real file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hotloop.frontends.model_file import ModelFile
from hotloop.util.errors import ModelFileError

Shape = tuple[int, ...]

#: Model types whose queries, keys and values always have a bias, whatever the config says.
_QKV_BIAS = ("qwen2", "gpt_oss")
#: … whose queries and keys are normalised by head,
_HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3_text")
#: … and with norms after attention and feed-forward layer, too.
_FOUR_NORMS = ("gemma2", "gemma3_text")
#: A graph has an op for each tensor of each layer: with more it would take for ever to build.
_MOST = {"layers": 1000}


@dataclass(frozen=True)
class _Numbers:
    """What shapes depend on."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    layers: int
    vocab: int

    @staticmethod
    def of(file: ModelFile) -> "_Numbers":
        width = file.require("hidden_size", int)
        heads = file.require("num_attention_heads", int)
        return _Numbers(
            width=width,
            heads=heads,
            kv_heads=file.optional("num_key_value_heads", int, heads),
            head_dim=file.optional("head_dim", int, width // max(1, heads)),
            ffn=file.require("intermediate_size", int),
            layers=file.require("num_hidden_layers", int),
            vocab=file.require("vocab_size", int),
        )


def checkpoint_shapes(file: ModelFile) -> Mapping[str, Shape]:
    """Name → shape of every tensor; `file` needs no tensors of its own.

    Raises `ModelFileError` for a config that lacks a number, or has one that cannot be.
    """
    n = _Numbers.of(file)
    for name, number in vars(n).items():
        if not 1 <= number <= _MOST.get(name, number):
            raise ModelFileError(
                f"{file.path} says {name} = {number}, which no model has; correct the config."
            )
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (n.vocab, n.width)}
    for i in range(n.layers):
        at = f"model.layers.{i}"
        for name, shape in (*_norms(file, n), *_attention(file, n), *_feed_forward(file, n, i)):
            shapes[f"{at}.{name}"] = shape
    shapes["model.norm.weight"] = (n.width,)
    if not file.optional("tie_word_embeddings", bool, False):
        shapes["lm_head.weight"] = (n.vocab, n.width)
    return shapes


def _norms(file: ModelFile, n: _Numbers) -> Iterator[tuple[str, Shape]]:
    yield "input_layernorm.weight", (n.width,)
    yield "post_attention_layernorm.weight", (n.width,)
    if file.architecture in _FOUR_NORMS:
        yield "pre_feedforward_layernorm.weight", (n.width,)
        yield "post_feedforward_layernorm.weight", (n.width,)


def _attention(file: ModelFile, n: _Numbers) -> Iterator[tuple[str, Shape]]:
    if file.optional("kv_lora_rank", int, 0):
        yield from _latent_attention(file, n)
        return
    every = file.optional("attention_bias", bool, False)
    rows = {"q": n.heads * n.head_dim, "k": n.kv_heads * n.head_dim, "v": n.kv_heads * n.head_dim}
    for name, count in rows.items():
        yield f"self_attn.{name}_proj.weight", (count, n.width)
        if every or file.architecture in _QKV_BIAS:
            yield f"self_attn.{name}_proj.bias", (count,)
    yield "self_attn.o_proj.weight", (n.width, n.heads * n.head_dim)
    if every:
        yield "self_attn.o_proj.bias", (n.width,)
    if file.architecture in _HEAD_NORMS:
        yield "self_attn.q_norm.weight", (n.head_dim,)
        yield "self_attn.k_norm.weight", (n.head_dim,)
    if file.architecture == "gpt_oss":
        yield "self_attn.sinks", (n.heads,)


def _latent_attention(file: ModelFile, n: _Numbers) -> Iterator[tuple[str, Shape]]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""
    plain, turned = file.require("qk_nope_head_dim", int), file.require("qk_rope_head_dim", int)
    value, latent = file.require("v_head_dim", int), file.require("kv_lora_rank", int)
    q_rank = file.optional("q_lora_rank", int, 0)
    q_rows = n.heads * (plain + turned)
    if q_rank:
        yield "self_attn.q_a_proj.weight", (q_rank, n.width)
        yield "self_attn.q_a_layernorm.weight", (q_rank,)
        yield "self_attn.q_b_proj.weight", (q_rows, q_rank)
    else:
        yield "self_attn.q_proj.weight", (q_rows, n.width)
    yield "self_attn.kv_a_proj_with_mqa.weight", (latent + turned, n.width)
    yield "self_attn.kv_a_layernorm.weight", (latent,)
    yield "self_attn.kv_b_proj.weight", (n.heads * (plain + value), latent)
    yield "self_attn.o_proj.weight", (n.width, n.heads * value)


def _feed_forward(file: ModelFile, n: _Numbers, layer: int) -> Iterator[tuple[str, Shape]]:
    if file.architecture == "gpt_oss":
        experts = file.require("num_local_experts", int)
        yield "mlp.router.weight", (experts, n.width)
        yield "mlp.router.bias", (experts,)
        yield "mlp.experts.gate_up_proj", (experts, n.width, 2 * n.ffn)
        yield "mlp.experts.gate_up_proj_bias", (experts, 2 * n.ffn)
        yield "mlp.experts.down_proj", (experts, n.ffn, n.width)
        yield "mlp.experts.down_proj_bias", (experts, n.width)
    elif file.architecture == "mixtral":
        experts = file.require("num_local_experts", int)
        yield "block_sparse_moe.gate.weight", (experts, n.width)
        for e in range(experts):
            yield f"block_sparse_moe.experts.{e}.w1.weight", (n.ffn, n.width)
            yield f"block_sparse_moe.experts.{e}.w2.weight", (n.width, n.ffn)
            yield f"block_sparse_moe.experts.{e}.w3.weight", (n.ffn, n.width)
    else:
        yield from _routed_or_dense(file, n, layer)


def _routed_or_dense(file: ModelFile, n: _Numbers, layer: int) -> Iterator[tuple[str, Shape]]:
    """Qwen's and DeepSeek's mixtures of experts, whose first layers may be dense."""
    experts = file.optional("n_routed_experts", int, 0) or file.optional("num_experts", int, 0)
    if not experts or layer < file.optional("first_k_dense_replace", int, 0):
        yield from _gated("mlp", n.ffn, n.width)
        return
    each = file.require("moe_intermediate_size", int)
    yield "mlp.gate.weight", (experts, n.width)
    if file.optional("topk_method", str, "") == "noaux_tc":
        yield "mlp.gate.e_score_correction_bias", (experts,)
    for e in range(experts):
        yield from _gated(f"mlp.experts.{e}", each, n.width)
    shared = file.optional("n_shared_experts", int, 0)
    if shared:
        yield from _gated("mlp.shared_experts", shared * each, n.width)


def _gated(prefix: str, ffn: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate_proj.weight", (ffn, width)
    yield f"{prefix}.up_proj.weight", (ffn, width)
    yield f"{prefix}.down_proj.weight", (width, ffn)
