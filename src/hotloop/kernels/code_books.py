"""Codes of iq4_nl, iq4_xs and mxfp4: nibbles, looked up in a table of 16 bytes.

The table of mxfp4 is kept with 12 added, so that its codes are unsigned.
"""

from collections.abc import Iterator

from hotloop.ir.code_books import BOOK, TWICE_E2M1
from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock, field
from hotloop.lang import Type, Value, f32, i8, lookup, select, u8, u32

_LARGEST_E2M1 = max(TWICE_E2M1)


def _codes(rows: Rows, first: Index, book: tuple[int, ...], kind: Type) -> Iterator[Value]:
    for lane in range(8):
        four = field(rows.lanes("fours", first, lane % 4), 4, at=lane // 4 * 4)
        yield lookup(book, four, kind)


def _iq4_nl(rows: Rows, part: Index, sub: Index) -> SubBlock:
    return SubBlock(_codes(rows, 0, BOOK, i8), rows.half("d"))


def _iq4_xs(rows: Rows, part: Index, sub: Index) -> SubBlock:
    scale = rows.half("d") * rows.byte("scales", part, 0, signed=True).to(f32)
    return SubBlock(_codes(rows, part * 4, BOOK, i8), scale)


def _mxfp4(rows: Rows, part: Index, sub: Index) -> SubBlock:
    book = tuple(number + _LARGEST_E2M1 for number in TWICE_E2M1)
    return SubBlock(_codes(rows, 0, book, u8), _power(rows.byte("exponent", 0, 0)))


def _power(exponent: Value) -> Value:
    """2^(exponent - 128) as float32, of which the smallest two are subnormal."""
    wide = exponent.to(u32)
    bits = select(wide < 2, (wide & 1) * 0x00200000 + 0x00200000, (wide - 1) << 23)
    return bits.bitcast(f32 * wide.type.lanes)


CODES["iq4_nl"] = Codes(_iq4_nl, width=32, largest=127, signed=True)
CODES["iq4_xs"] = Codes(_iq4_xs, width=32, largest=127, signed=True, parts=8)
CODES["mxfp4"] = Codes(_mxfp4, width=32, largest=2 * _LARGEST_E2M1, offset=_LARGEST_E2M1)
