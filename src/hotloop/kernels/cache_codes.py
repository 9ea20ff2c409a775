"""An i8 cache: 8-bit codes, of which each head of a position has one scale.

A head's positions in a page are all codes, then all scales: attention reads the scales of sixteen
positions as one vector. Keys are [page / 16][head_dim / 2][16][2], two elements of a position side
by side, and values [page / 2][head_dim][2], two positions of an element: what an integer dot
product of 16-bit pairs takes. Heads are filled up to a multiple of 16 elements, which nothing
writes and nothing counts.
"""

from collections.abc import Callable, Sequence
from functools import reduce

from hotloop.ir.approx import ROUND
from hotloop.ir.ops.cache import LARGEST_CODE, SMALLEST_SCALE, code_width
from hotloop.lang import (
    Pointer,
    Value,
    absolute,
    constant,
    f32,
    i8,
    i32,
    max_lanes,
    maximum,
    select,
    sum_lanes,
    vectors_of,
)

LANES = 16
"""Positions of keys that lie side by side, and elements of a vector."""


def scales_of(head: Pointer, page: int, dim: int) -> Pointer:
    """f32[page]: the scales of a head's positions in a page, which begin at `head`."""
    return head.cast(i8).at(page * code_width(dim)).cast(f32)


def store_key(head: Pointer, position: Value, x: Pointer, page: int, dim: int) -> None:
    """Put x, f32[dim], at a position of the page in which `head` begins."""
    block = position // LANES * (code_width(dim) * LANES) + position % LANES * 2
    _store(head, position, x, page, dim, lambda d: block + (d // 2 * (2 * LANES) + d % 2))


def store_value(head: Pointer, position: Value, x: Pointer, page: int, dim: int) -> None:
    pair = position // 2 * (code_width(dim) * 2) + position % 2
    _store(head, position, x, page, dim, lambda d: pair + d * 2)


def _store(
    head: Pointer,
    position: Value,
    x: Pointer,
    page: int,
    dim: int,
    place: Callable[[int], Value],
) -> None:
    cut = vectors_of(dim, LANES)
    vectors = [x.load(at, lanes) for at, lanes in cut]
    scale = scale_for(vectors, LARGEST_CODE)
    scales_of(head, page, dim).store(scale, position)
    for (at, lanes), codes in zip(cut, codes_of(vectors, scale), strict=True):
        for lane in range(lanes):
            head.cast(i8).store(codes.to(i8).lane(lane), place(at + lane))


def scale_for(vectors: Sequence[Value], largest: int) -> Value:
    """The scale, f32, with which the largest magnitude becomes the code `largest`.

    NaN where the vectors have an infinity or a NaN, which comparisons would lose.
    """
    tops, nothings = [], []
    for lanes in dict.fromkeys(vector.type.lanes for vector in vectors):
        alike = [vector for vector in vectors if vector.type.lanes == lanes]
        tops.append(max_lanes(reduce(maximum, map(absolute, alike))))
        nothings.append(sum_lanes(reduce(Value.__add__, [vector * 0.0 for vector in alike])))
    return reduce(maximum, tops) / float(largest) + reduce(Value.__add__, nothings)


def codes_of(vectors: Sequence[Value], scale: Value) -> list[Value]:
    """i32 lanes: the nearest multiples of the scale. Of what is no number, anything."""
    inverse = select(scale >= SMALLEST_SCALE, constant(1.0, f32) / scale, 0.0)
    # Adding ROUND leaves the integer in the low 16 bits, where no conversion can be out of range.
    return [
        (vector * inverse.broadcast(vector.type.lanes) + ROUND).bitcast(i32 * vector.type.lanes)
        for vector in vectors
    ]
