"""Dot products with weights in blocks of 32: q8_0, q4_0 and q4_1.

With 8-bit activations a block's products are summed as integers, exactly, and scaled once: for
weights d·q + m and activations s·p,

    Σ (d·q + m) · s·p  =  d·s · Σ q·p  +  m · s·Σ p

where the activation's record already holds s·Σp. Only q4_1 has a minimum m; for q4_0, d·(q - 8),
the integers Σ q·p start from -8·Σp.
"""

from collections.abc import Iterator

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_pairs import dot_pairs
from hotloop.kernels.pack import BLOCK, block_layout
from hotloop.kernels.packed import (
    load_scales,
    load_scales_of,
    load_side_by_side,
    prefetch_block,
    quants_at,
)
from hotloop.kernels.stream import Share
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    add_pairs,
    current,
    dot2,
    dot4,
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


def dot_blocks_q8(
    weight: TensorType, groups: list[Pointer], tokens: list[Pointer], ahead: Share | None
) -> list[Value]:
    """The rows of one packed group, or of two as one vector, with each token's q8[K].

    What is asked for meanwhile is `ahead`, or what follows closely where that is None.
    """
    blocks, rows = weight.shape[1] // BLOCK, GROUP * len(groups)
    scales = [token.at(weight.shape[1]).cast(f32) for token in tokens]
    weighted_sums = [scale.at(blocks) for scale in scales]
    totals = [Var(zeros(f32 * rows)) for _ in tokens]
    # Two blocks of one token at once are 2% faster (512 bits), and more would not fit registers.
    two = len(tokens) == 1 and len(groups) == 2
    for block in loop(blocks, unroll=2 if two else 1):
        if ahead is not None:
            ahead.prefetch(block)
        else:
            for group in groups:
                prefetch_block(weight, group, block)
        products = _dot_block(weight, groups, tokens, block)
        d, m = load_scales_of(weight, groups, block)
        for t, total in enumerate(totals):
            scale = scales[t].load(block).broadcast(rows)
            total.set(fma(products[t].to(f32), d * scale, total))
            if m is not None:
                total.set(fma(m, weighted_sums[t].load(block).broadcast(rows), total))
    return [total.get() for total in totals]


def pairs_pay(tokens: list[Pointer]) -> bool:
    """Whether rows and tokens are taken in pairs."""
    return current().module.target.i8mm and len(tokens) % 2 == 0


def _dot_block(
    weight: TensorType, groups: list[Pointer], tokens: list[Pointer], block: Value
) -> list[Value]:
    """Σ q·p of a block, for each token: an i32 for each row."""
    target, name = current().module.target, weight.format.name
    quants = [quants_at(weight, group, block) for group in groups]
    columns = [token.at(block * BLOCK) for token in tokens]
    # As q + 128, 8-bit weights are unsigned, as `vpdpbusd` has them.
    lifted = name == "q8_0" and target.vnni
    offset = 8 if name == "q4_0" else 128 if lifted else 0
    rows = GROUP * len(groups)
    sums = [_start(weight, token, block, offset, rows) for token in tokens]
    if pairs_pay(tokens):
        products = dot_pairs(_signed(weight, quants), columns, rows)
    elif lifted:
        return _dot_lifted_bytes(quants, columns, sums)
    elif name == "q8_0":
        return _dot_bytes(quants, columns, sums)
    elif target.sums_four:
        return _dot_nibbles(quants, columns, sums)
    else:
        products = _dot_nibbles_in_pairs(quants, columns)
    return [start + total for start, total in zip(sums, products, strict=True)]


def _start(weight: TensorType, token: Pointer, block: Value, offset: int, rows: int) -> Value:
    """-offset · Σp: what weights that are too large by `offset` add too much, taken off first."""
    if not offset:
        return zeros(i32 * rows)
    columns = weight.shape[1]
    halves = token.at(columns).cast(i32).at(columns // BLOCK * 2 + block * 2)
    return ((halves.load(0) + halves.load(1)) * -offset).broadcast(rows)


def nibbles(quants: list[Pointer]) -> Iterator[tuple[int, Value]]:
    """A block's 4-bit weights, four columns from the given one on to a lane, as unsigned bytes."""
    for vector in range(4):
        both = load_side_by_side(quants, vector * 32, 32)
        yield 4 * vector, both & 15
        yield 16 + 4 * vector, both >> 4


def _signed(weight: TensorType, quants: list[Pointer]) -> Iterator[tuple[int, Value]]:
    """A block's weights as they are, four columns from the given one on to a lane, as int8."""
    if weight.format.name == "q8_0":
        yield from signed_bytes(quants)
    else:
        yield from ((column, q.to(i8)) for column, q in nibbles(quants))


def signed_bytes(quants: list[Pointer]) -> Iterator[tuple[int, Value]]:
    """A block of q8_0, four columns from the given one on to a lane, as int8."""
    for vector in range(8):
        yield 4 * vector, load_side_by_side(quants, vector * 32, 32).to(i8)


def _dot_nibbles(quants: list[Pointer], tokens: list[Pointer], sums: list[Value]) -> list[Value]:
    rows = GROUP * len(quants)
    signed = current().module.target.dotprod  # 0 … 15 are the same either way
    for column, q in nibbles(quants):
        for t, x in enumerate(tokens):
            p = _four_columns(x, column, rows)
            if signed:
                sums[t] = dot4_signed(q.to(i8), p, sums[t])
            else:
                sums[t] = dot4(q, p, sums[t])
    return sums


def _dot_nibbles_in_pairs(quants: list[Pointer], tokens: list[Pointer]) -> list[Value]:
    """The same in lanes of 16 bits, as long as it goes.

    Such a lane sums eight pairs of products of at most 15 × 127, so 30,480 at most: a whole block
    fits, and is widened once.
    """
    rows = GROUP * len(quants)
    sums = [zeros(i16 * (2 * rows)) for _ in tokens]
    for column, q in nibbles(quants):
        for t, x in enumerate(tokens):
            sums[t] = sums[t] + dot2(q, _four_columns(x, column, rows))
    return [add_pairs(total) for total in sums]


def _dot_bytes(quants: list[Pointer], tokens: list[Pointer], sums: list[Value]) -> list[Value]:
    """The quantise op writes -127 … 127, so `tokens` never hold the -128 `dot4_signed` bars."""
    rows = GROUP * len(quants)
    for column, q in signed_bytes(quants):
        for t, x in enumerate(tokens):
            sums[t] = dot4_signed(q, _four_columns(x, column, rows), sums[t])
    return sums


def _dot_lifted_bytes(
    quants: list[Pointer], tokens: list[Pointer], sums: list[Value]
) -> list[Value]:
    rows = GROUP * len(quants)
    for vector in range(8):
        q = load_side_by_side(quants, vector * 32, 32) ^ 128
        for t, x in enumerate(tokens):
            sums[t] = dot4(q, _four_columns(x, 4 * vector, rows), sums[t])
    return sums


def _four_columns(x: Pointer, column: int, rows: int) -> Value:
    """Four neighbouring int8 of an activation, for all rows."""
    return x.at(column).cast(i32).load().broadcast(rows).bitcast(i8 * (4 * rows))


def dot_blocks_f32(weight: TensorType, group: Pointer, tokens: list[Pointer]) -> list[Value]:
    """Eight rows of `weight`, packed at `group`, with each token's f32[K].

    Weights are dequantised as `hotloop.ir.formats` does. Column k adds to chain k mod 4, and the
    chains are summed pairwise at the end.
    """
    chains = [[Var(zeros(f32 * GROUP)) for _ in range(CHAINS)] for _ in tokens]
    for block in loop(weight.shape[1] // BLOCK):
        prefetch_block(weight, group, block)
        d, m = load_scales(weight, group, block * GROUP, lanes=GROUP)
        quants = quants_at(weight, group, block)
        for column, q in _columns(weight, quants):
            values = d * q if m is None else d * q + m
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
