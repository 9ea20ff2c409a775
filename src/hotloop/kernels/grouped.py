"""Codes of the formats u4, u8 and f8 (`hotloop.ir.grouped`), by 32 columns.

Bytes lose their uppermost bit's meaning, 128, to the zero: as int8 they are what all targets take.
"""

from collections.abc import Iterator

from hotloop.ir.types import GROUPS
from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock, field
from hotloop.lang import Value, f32, i8


def _u4(rows: Rows, part: Index, sub: Index) -> SubBlock:
    def codes() -> Iterator[Value]:
        for lane in range(8):
            yield field(rows.lanes("codes", part * 4, lane % 4), 4, at=lane // 4 * 4)

    return SubBlock(codes(), rows.single("scale"), zero=rows.short("zero"))


def _u8(rows: Rows, part: Index, sub: Index) -> SubBlock:
    bytes_ = (rows.lanes("codes", part * 8, lane) ^ 128 for lane in range(8))
    codes = (four.bitcast(i8 * four.type.lanes) for four in bytes_)
    return SubBlock(codes, rows.single("scale"), zero=rows.short("zero") - 128)


def _f8(rows: Rows, part: Index, sub: Index) -> SubBlock:
    codes = (rows.lanes("codes", part * 8, lane) for lane in range(8))
    return SubBlock(codes, rows.single("scale"))


def _e4m3(code: Value) -> Value:
    """With its exponent field where a float32 has it, the number counts 2^-120 of itself.

    That holds for subnormal numbers, too; NaN is none of the weights (`hotloop.frontends.fp8`).
    """
    magnitude = ((code & 127) << 20).bitcast(f32 * code.type.lanes) * 2.0**120
    sign = (code & 128) << 24
    return (magnitude.bitcast(code.type) | sign).bitcast(f32 * code.type.lanes)


for n in GROUPS:
    CODES[f"u4_{n}"] = Codes(_u4, width=32, largest=15, parts=n // 32)
    CODES[f"u8_{n}"] = Codes(_u8, width=32, largest=128, signed=True, parts=n // 32)
    CODES[f"f8_{n}"] = Codes(_f8, width=32, largest=255, parts=n // 32, number=_e4m3)
