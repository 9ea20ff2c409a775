"""Write a GGUF file with the shapes of a real model and random weights.

    python benchmarks/shaped_model.py Q4_0 llama-1b-Q4_0.gguf
    python benchmarks/shaped_model.py Q4_0 granite-moe-1b-Q4_0.gguf --shapes granite-moe-1b

How fast a model runs depends on its shapes and formats, not on what it says. The weights are
normally distributed, so that activations keep the range that they have in a trained model; every
matrix, the tied embedding included, is in one format. The vocabulary is byte-level BPE: the 256
bytes, then pairs and triples of them with the merges that make them, then two control tokens.
Needs `gguf`, which `pip install hotloop[bench]` brings.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

FORMATS = ("Q4_0", "Q8_0", "BF16")
#: Distinct weights: matrices repeat rows of a pool, since quantising 1.2 billion numbers is slow.
POOL_VALUES = 1 << 22
#: Standard deviation of the weights; Llama's projections are about this.
SCALE = 0.02


@dataclass(frozen=True)
class Shapes:
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    experts: int = 0
    """Of each layer, each with `ffn` hidden numbers; 0: one feed-forward network for all."""
    experts_used: int = 0
    """By a token."""

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The name and shape, columns last, of each matrix."""
        yield "token_embd", (self.vocab, self.width)
        kv = self.kv_heads * self.head_dim
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_q", (self.width, self.width)
            yield f"blk.{layer}.attn_k", (kv, self.width)
            yield f"blk.{layer}.attn_v", (kv, self.width)
            yield f"blk.{layer}.attn_output", (self.width, self.width)
            suffix, of = ("_exps", (self.experts,)) if self.experts else ("", ())
            yield f"blk.{layer}.ffn_gate{suffix}", (*of, self.ffn, self.width)
            yield f"blk.{layer}.ffn_up{suffix}", (*of, self.ffn, self.width)
            yield f"blk.{layer}.ffn_down{suffix}", (*of, self.width, self.ffn)

    def norms(self) -> Iterator[str]:
        yield "output_norm"
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm"
            yield f"blk.{layer}.ffn_norm"

    def routers(self) -> Iterator[str]:
        if self.experts:
            yield from (f"blk.{layer}.ffn_gate_inp" for layer in range(self.layers))


#: Llama-3.2-1B, from its config.json.
LLAMA_1B = Shapes(
    layers=16, width=2048, heads=32, kv_heads=8, ffn=8192, vocab=128256, context=131072
)
#: granite-3.1-1b-a400m, from its config.json; written as a Llama with experts.
GRANITE_MOE_1B = Shapes(
    layers=24,
    width=1024,
    heads=16,
    kv_heads=8,
    ffn=512,
    vocab=49155,
    context=131072,
    experts=32,
    experts_used=8,
)
SHAPES = {"llama-1b": LLAMA_1B, "granite-moe-1b": GRANITE_MOE_1B}


def write(path: Path, shapes: Shapes, format: str) -> None:
    """Write the model in place in one step: an interrupted run leaves no half of it."""
    kind = gguf.GGMLQuantizationType[format]
    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_name(f"random weights, {format}")
    writer.add_block_count(shapes.layers)
    writer.add_context_length(shapes.context)
    writer.add_embedding_length(shapes.width)
    writer.add_feed_forward_length(shapes.ffn)
    writer.add_head_count(shapes.heads)
    writer.add_head_count_kv(shapes.kv_heads)
    writer.add_rope_dimension_count(shapes.head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shapes.vocab)
    if shapes.experts:
        writer.add_expert_count(shapes.experts)
        writer.add_expert_used_count(shapes.experts_used)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{format}"])
    add_vocabulary(writer, shapes.vocab)
    random = np.random.default_rng(0)
    pools: dict[int, NDArray[np.uint8]] = {}
    for name, (*rows, columns) in shapes.matrices():
        if columns not in pools:
            values = random.normal(0, SCALE, (max(1, POOL_VALUES // columns), columns))
            pools[columns] = gguf.quants.quantize(values.astype(np.float32), kind).view(np.uint8)
        chosen = random.integers(len(pools[columns]), size=rows)
        writer.add_tensor(f"{name}.weight", pools[columns][chosen], raw_dtype=kind)
    for name in shapes.routers():
        router = random.normal(0, SCALE, (shapes.experts, shapes.width)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", router)
    for name in shapes.norms():
        writer.add_tensor(f"{name}.weight", np.ones(shapes.width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A byte-level vocabulary of `size` tokens, at least 258."""
    tokens, merges = vocabulary(size - 2)
    types = [int(gguf.TokenType.NORMAL)] * len(tokens) + [int(gguf.TokenType.CONTROL)] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*tokens, "<|begin_of_text|>", "<|end_of_text|>"])
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(size - 2)
    writer.add_eos_token_id(size - 1)


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """`size` tokens, and the merges that make each of them but the single bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = itertools.product(letters, letters)
    triples = ((a + b, c) for a, b, c in itertools.product(letters, letters, letters))
    parts = list(itertools.islice(itertools.chain(pairs, triples), size - len(letters)))
    return [*letters, *(a + b for a, b in parts)], [f"{a} {b}" for a, b in parts]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a model with random weights.")
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shapes", choices=SHAPES, default="llama-1b")
    options = parser.parse_args()
    write(options.path, SHAPES[options.shapes], options.format)
