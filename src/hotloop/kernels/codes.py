"""What the kernels of record formats know of a format: how to read codes and scales of a block.

A block consists of sub-blocks: 16 or 32 neighbouring columns with a scale and perhaps a minimum for
each row, so that a weight is

    scale · (code - offset - zero) + minimum

with codes that are made four neighbouring columns of each row at a time. Dot products and look-ups
(`dot_records`) are written once for all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.kernels.packed import load_side_by_side
from hotloop.kernels.records import RecordLayout
from hotloop.lang import Pointer, Type, Value, f16, f32, i8, i16, i32, u8, u32

Index = Value | int


@dataclass(frozen=True)
class Rows:
    """The fields of a record for some of its rows, a lane for each.

    These are the eight of one record, the sixteen of two side by side, or the one row `row`.
    """

    layout: RecordLayout
    records: list[Pointer]
    row: Value | None = None

    @property
    def count(self) -> int:
        return GROUP * len(self.records) if self.row is None else 1

    def lanes(self, field: str, first: Index, index: Index) -> Value:
        """32-bit lane number `first` + `index` of each row, as u8 × 4·rows."""
        return self._load(field, u8, first, index, 4)

    def single(self, field: str) -> Value:
        """A float32."""
        return self._load(field, f32, 0, 0, 1)

    def short(self, field: str) -> Value:
        """An int16 as i32."""
        return self._load(field, i16, 0, 0, 1).to(i32)

    def half(self, field: str) -> Value:
        """A float16 as float32."""
        return self._load(field, f16, 0, 0, 1).to(f32)

    def byte(self, field: str, first: Index, index: Index, *, signed: bool = False) -> Value:
        """Byte number `first` + `index` of each row."""
        return self._load(field, i8 if signed else u8, first, index, 1)

    def _load(self, field: str, element: Type, first: Index, index: Index, each: int) -> Value:
        """Two steps, of which the second, where a constant, is part of the load instruction."""
        at, step = self.layout.offset(field), each * GROUP
        fields = [record.at(at).cast(element).at(first * step) for record in self.records]
        if self.row is None:
            return load_side_by_side(fields, index * step, step)
        return fields[0].load(self.row * each + index * step, each if each > 1 else 0)


@dataclass(frozen=True)
class SubBlock:
    """Columns that share a scale: four in each of `codes`, in order, as u8 or i8 × 4·rows."""

    codes: Iterator[Value]
    scale: Value
    minimum: Value | None = None
    zero: Value | None = None
    """i32 for each row, taken off its codes like the format's offset."""


@dataclass(frozen=True)
class Codes:
    """A format's codes: `parts` times `subs` sub-blocks of `width` columns in a block.

    The sub-blocks of all parts are made alike, and code may loop over parts at no cost. Those of a
    part differ in their shifts: as constants in unrolled code, or computed in a loop over them.
    """

    sub_block: Callable[[Rows, Index, Index], SubBlock]
    """Of the rows of a block, the part and the sub-block of the part."""
    width: int
    largest: int
    """The greatest magnitude of a code, before the offset is taken off."""
    offset: int = 0
    signed: bool = False
    """Whether codes are i8, not u8."""
    parts: int = 1
    subs: int = 1
    number: Callable[[Value], Value] = lambda code: code.to(f32)
    """The float32 of an i32 code, without its offset."""

    @property
    def columns(self) -> int:
        """Columns of a part."""
        return self.width * self.subs


CODES: dict[str, Codes] = {}


def field(four: Value, bits: int, at: Index, to: int = 0) -> Value:
    """The `bits` bits of each byte from bit `at` on, moved to bit `to`."""
    mask = (1 << bits) - 1
    if isinstance(at, Value):
        wide = four.bitcast(u32 * (four.type.lanes // 4))
        moved = (wide >> at.to(u32)) & (mask * 0x01010101)
        return (moved << to if to else moved).bitcast(four.type)
    if at == to:
        return four & (mask << to)
    return (four >> at - to if at > to else four << to - at) & (mask << to)
