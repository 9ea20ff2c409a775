"""Dot products of float32 activations with plain weights: f32, f16 and bf16.

Column k adds to chain k mod 4, and the chains are summed pairwise at the end: four independent
sums hide the latency of a fused multiply-add.
"""

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.packed import load_plain
from hotloop.kernels.stream import prefetch_ahead
from hotloop.lang import Pointer, Value, Var, f32, fma, loop, zeros

CHAINS = 4


def dot_plain(weight: TensorType, groups: list[Pointer], tokens: list[Pointer]) -> list[Value]:
    """The rows of one packed group, or of two as one vector, with each token's f32[K]."""
    columns, column_bytes = weight.shape[1], GROUP * weight.format.block_bytes
    rows = GROUP * len(groups)
    chains = [[Var(zeros(f32 * rows)) for _ in range(CHAINS)] for _ in tokens]

    def add(column: Value | int, chain: int) -> None:
        values = load_plain(weight, groups, column * GROUP, lanes=GROUP)
        for x, sums in zip(tokens, chains, strict=True):
            factor = x.cast(f32).load(column).broadcast(rows)
            sums[chain].set(fma(values, factor, sums[chain]))

    whole = columns // CHAINS * CHAINS
    for column in loop(whole, step=CHAINS):
        for group in groups:
            prefetch_ahead(group.at(column * column_bytes), CHAINS * column_bytes)
        for chain in range(CHAINS):
            add(column + chain, chain)
    for chain in range(columns - whole):
        add(whole + chain, chain)
    return [(a + b) + (c + d) for a, b, c, d in chains]
