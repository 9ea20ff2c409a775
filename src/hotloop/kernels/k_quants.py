"""Codes of the K-quants: planes of one, two and four bits (`hotloop.ir.k_quants`), joined.

The planes say how a block falls into parts: 64 columns that share 32 bytes of nibbles, or 128 that
share 32 bytes of two bits. A plane of one bit spans the whole block, which then is one part.
"""

from collections.abc import Iterator

from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock, field
from hotloop.lang import Value, f32


def _scale(rows: Rows, first: Index, index: Index, *, signed: bool = False) -> Value:
    return rows.half("d") * rows.byte("scales", first, index, signed=signed).to(f32)


def _minimum(rows: Rows, minimum: Value) -> Value:
    return -(rows.half("dmin") * minimum.to(f32))


def _q2_k(rows: Rows, half: Index, sub: Index) -> SubBlock:
    def codes() -> Iterator[Value]:
        for v in range(4):
            two = rows.lanes("twos", half * 8, (sub & 1) * 4 + v)
            yield field(two, 2, at=(sub >> 1) * 2)

    both = rows.byte("scales", half * 8, sub)
    scale = rows.half("d") * (both & 15).to(f32)
    return SubBlock(codes(), scale, _minimum(rows, both >> 4))


def _q3_k(rows: Rows, part: Index, sub: Index) -> SubBlock:
    def codes() -> Iterator[Value]:
        first = (sub & 1) * 4
        for v in range(4):
            two = rows.lanes("twos", (sub >> 3) * 8, first + v)
            one = rows.lanes("ones", 0, first + v)
            yield field(two, 2, at=((sub >> 1) & 3) * 2) | field(one, 1, at=sub >> 1, to=2)

    return SubBlock(codes(), _scale(rows, 0, sub, signed=True))


def _q4_k(rows: Rows, quarter: Index, sub: Index) -> SubBlock:
    codes = (field(rows.lanes("fours", quarter * 8, v), 4, at=sub * 4) for v in range(8))
    minimum = _minimum(rows, rows.byte("minima", quarter * 2, sub))
    return SubBlock(codes, _scale(rows, quarter * 2, sub), minimum)


def _q5_k(rows: Rows, part: Index, sub: Index) -> SubBlock:
    def codes() -> Iterator[Value]:
        for v in range(8):
            four, one = rows.lanes("fours", (sub >> 1) * 8, v), rows.lanes("ones", 0, v)
            yield field(four, 4, at=(sub & 1) * 4) | field(one, 1, at=sub, to=4)

    return SubBlock(codes(), _scale(rows, 0, sub), _minimum(rows, rows.byte("minima", 0, sub)))


def _q6_k(rows: Rows, half: Index, sub: Index) -> SubBlock:
    def codes() -> Iterator[Value]:
        plane, first = sub >> 1, (sub & 1) * 4
        for v in range(4):
            four = rows.lanes("fours", half * 16, (plane & 1) * 8 + first + v)
            two = rows.lanes("twos", half * 8, first + v)
            yield field(four, 4, at=(plane >> 1) * 4) | field(two, 2, at=plane * 2, to=4)

    return SubBlock(codes(), _scale(rows, half * 8, sub, signed=True))


CODES["q2_k"] = Codes(_q2_k, width=16, largest=3, parts=2, subs=8)
CODES["q3_k"] = Codes(_q3_k, width=16, largest=7, offset=4, subs=16)
CODES["q4_k"] = Codes(_q4_k, width=32, largest=15, parts=4, subs=2)
CODES["q5_k"] = Codes(_q5_k, width=32, largest=31, subs=8)
CODES["q6_k"] = Codes(_q6_k, width=16, largest=63, offset=32, parts=2, subs=8)
