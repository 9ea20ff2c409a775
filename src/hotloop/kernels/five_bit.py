"""Codes of q5_0 and q5_1: nibbles as in q4_0, and a byte whose bit b is the fifth bit in lane b."""

from collections.abc import Iterator

from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock, field
from hotloop.lang import Value


def _codes(rows: Rows) -> Iterator[Value]:
    ones = rows.lanes("ones", 0, 0)
    for lane in range(8):
        four = field(rows.lanes("fours", 0, lane % 4), 4, at=lane // 4 * 4)
        yield four | field(ones, 1, at=lane, to=4)


def _q5_0(rows: Rows, part: Index, sub: Index) -> SubBlock:
    return SubBlock(_codes(rows), rows.half("d"))


def _q5_1(rows: Rows, part: Index, sub: Index) -> SubBlock:
    return SubBlock(_codes(rows), rows.half("d"), rows.half("m"))


CODES["q5_0"] = Codes(_q5_0, width=32, largest=31, offset=16)
CODES["q5_1"] = Codes(_q5_1, width=32, largest=31)
