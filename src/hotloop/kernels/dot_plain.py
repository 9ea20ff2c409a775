"""Dot products of float32 activations with plain weights: f32, f16 and bf16.

Column k adds to chain k mod 4, and the chains are summed pairwise at the end: four independent
sums hide the latency of a fused multiply-add.
"""

from hotloop.ir.types import TensorType
from hotloop.kernels.stream import prefetch_ahead
from hotloop.lang import Pointer, Value, Var, bf16_to_f32, f16, f32, fma, loop, u16, zeros

CHAINS = 4


def dot_plain(weight: TensorType, group: Pointer, tokens: list[Pointer]) -> list[Value]:
    """Eight rows of `weight`, packed at `group`, with each token's f32[K]."""
    columns, column_bytes = weight.shape[1], 8 * weight.format.block_bytes
    chains = [[Var(zeros(f32 * 8)) for _ in range(CHAINS)] for _ in tokens]

    def add(column: Value | int, chain: int) -> None:
        values = load_column(weight, group, column)
        for x, sums in zip(tokens, chains, strict=True):
            sums[chain].set(fma(values, x.cast(f32).load(column).broadcast(8), sums[chain]))

    whole = columns // CHAINS * CHAINS
    for column in loop(whole, step=CHAINS):
        if len(tokens) == 1:
            prefetch_ahead(group.at(column * column_bytes), CHAINS * column_bytes)
        for chain in range(CHAINS):
            add(column + chain, chain)
    for chain in range(columns - whole):
        add(whole + chain, chain)
    return [(a + b) + (c + d) for a, b, c, d in chains]


def load_column(weight: TensorType, group: Pointer, column: Value | int) -> Value:
    """Eight rows of one column, as float32."""
    if weight.format.name == "bf16":
        return bf16_to_f32(group.cast(u16).load(column * 8, lanes=8))
    element = f16 if weight.format.name == "f16" else f32
    return group.cast(element).load(column * 8, lanes=8).to(f32)
