"""Dot products with weights in blocks of 32: q8_0, q4_0 and q4_1.

With 8-bit activations a block's products are summed as integers, exactly, and scaled once: for
weights d·q + m and activations s·p,

    Σ (d·q + m) · s·p  =  d·s · Σ q·p  +  m · s·Σ p

where the activation's record already holds s·Σp. q4_0, d·(q - 8), is the case m = -8·d; q8_0 has
no minimum.
"""

from collections.abc import Iterator

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.pack import BLOCK, block_layout
from hotloop.kernels.packed import load_scales, prefetch_block, quants_at
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    add_pairs,
    dot2,
    dot4_signed,
    f32,
    fma,
    i8,
    i16,
    i32,
    loop,
    u32,
    zeros,
)

CHAINS = 4


def dot_blocks_q8(weight: TensorType, group: Pointer, tokens: list[Pointer]) -> list[Value]:
    """Eight rows of `weight`, packed at `group`, with each token's q8[K] record."""
    blocks = weight.shape[1] // BLOCK
    scales = [x.at(weight.shape[1]).cast(f32) for x in tokens]
    weighted_sums = [scale.at(blocks) for scale in scales]
    totals = [Var(zeros(f32 * GROUP)) for _ in tokens]
    dot_block = _dot_bytes if weight.format.name == "q8_0" else _dot_nibbles
    for block in loop(blocks):
        prefetch_block(weight, group, block)
        quants = quants_at(weight, group, block)
        products = dot_block(quants, [x.at(block * BLOCK) for x in tokens])
        d, minimum = load_scales(weight, group, block * GROUP, lanes=GROUP)
        if weight.format.name == "q4_0":
            minimum = d * -8.0
        for t, total in enumerate(totals):
            scale = scales[t].load(block).broadcast(GROUP)
            total.set(fma(products[t].to(f32), d * scale, total))
            if minimum is not None:
                total.set(fma(minimum, weighted_sums[t].load(block).broadcast(GROUP), total))
    return [total.get() for total in totals]


def _dot_nibbles(quants: Pointer, tokens: list[Pointer]) -> list[Value]:
    """Σ q·p of a block of 4-bit weights: i32x8 for each token.

    An int16 lane sums eight pairs of products of at most 15 × 127, so 30,480 at most: a whole
    block fits, and is widened once.
    """
    sums = [Var(zeros(i16 * (2 * GROUP))) for _ in tokens]
    for vector in range(4):
        packed = quants.load(vector * 32, lanes=32)
        for nibbles, column in ((packed & 15, 4 * vector), (packed >> 4, 16 + 4 * vector)):
            for x, total in zip(tokens, sums, strict=True):
                total += dot2(nibbles, _four_columns(x, column))
    return [add_pairs(total) for total in sums]


def _dot_bytes(quants: Pointer, tokens: list[Pointer]) -> list[Value]:
    """Σ q·p of a block of 8-bit weights: i32x8 for each token.

    The quantise op writes -127 … 127, so activations never hold the -128 that `dot4_signed` bars.
    """
    sums = [Var(zeros(i32 * GROUP)) for _ in tokens]
    for vector in range(8):
        q = quants.cast(i8).load(vector * 32, lanes=32)
        for x, total in zip(tokens, sums, strict=True):
            total += dot4_signed(q, _four_columns(x, 4 * vector))
    return [total.get() for total in sums]


def _four_columns(x: Pointer, column: int) -> Value:
    """Four neighbouring int8 of an activation, for all eight rows."""
    return x.at(column).cast(i32).load().broadcast(GROUP).bitcast(i8 * (4 * GROUP))


def dot_blocks_f32(weight: TensorType, group: Pointer, tokens: list[Pointer]) -> list[Value]:
    """Eight rows of `weight`, packed at `group`, with each token's f32[K].

    Weights are dequantised as `hotloop.ir.formats` does. Column k adds to chain k mod 4, and the
    chains are summed pairwise at the end.
    """
    chains = [[Var(zeros(f32 * GROUP)) for _ in range(CHAINS)] for _ in tokens]
    for block in loop(weight.shape[1] // BLOCK):
        prefetch_block(weight, group, block)
        d, minimum = load_scales(weight, group, block * GROUP, lanes=GROUP)
        quants = quants_at(weight, group, block)
        for column, q in _columns(weight, quants):
            values = d * q if minimum is None else d * q + minimum
            for x, sums in zip(tokens, chains, strict=True):
                factor = x.cast(f32).load(block * BLOCK + column).broadcast(GROUP)
                sums[column % CHAINS].set(fma(values, factor, sums[column % CHAINS]))
    return [(a + b) + (c + d) for a, b, c, d in chains]


def _columns(weight: TensorType, quants: Pointer) -> Iterator[tuple[int, Value]]:
    """The 32 columns of a block, with the quants of the eight rows as f32x8."""
    signed = weight.format.name == "q8_0"
    for vector in range(block_layout(weight).vectors):
        lanes = quants.at(vector * 32).cast(i32 if signed else u32).load(lanes=GROUP)
        for byte in range(4):
            column = 4 * vector + byte
            if signed:
                yield column, ((lanes << (24 - 8 * byte)) >> 24).to(f32)
                continue
            for shift, start in ((0, 0), (4, 16)):
                nibble = ((lanes >> (8 * byte + shift)) & 15).to(i32)
                if weight.format.name == "q4_0":
                    nibble = nibble - 8
                yield start + column, nibble.to(f32)
