"""The codes of any quantised format as int8, four columns of sixteen rows at a time, in order.

Tiles take weights as whole bytes with their sign, so the offset of a format is taken off here, and
blocks of 32 and records look alike: parts of a row, which are sub-blocks (`codes`) made alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hotloop.ir.types import TensorType
from hotloop.kernels.codes import CODES, Rows, SubBlock
from hotloop.kernels.dot_blocks import nibbles, signed_bytes
from hotloop.kernels.pack import BLOCK
from hotloop.kernels.packed import load_scales_of, quants_at
from hotloop.kernels.records import RECORDS
from hotloop.lang import Pointer, Value, i8


@dataclass(frozen=True)
class Parts:
    """How the rows of a weight fall into parts, as `Codes` has it."""

    width: int
    """Columns of a sub-block."""
    subs: int
    """Sub-blocks of a part."""
    count: int
    """Parts of a row."""

    @staticmethod
    def of(weight: TensorType) -> "Parts":
        name, columns = weight.format.name, weight.shape[1]
        if name not in RECORDS:
            return Parts(BLOCK, 1, columns // BLOCK)
        codes = CODES[name]
        return Parts(codes.width, codes.subs, columns // codes.columns)


def sub_blocks(weight: TensorType, groups: list[Pointer], part: Value) -> Iterator[SubBlock]:
    """The sub-blocks of a part of the rows of some groups."""
    name = weight.format.name
    if name not in RECORDS:
        d, m = load_scales_of(weight, groups, part)
        yield SubBlock(_block(weight, [quants_at(weight, group, part) for group in groups]), d, m)
        return
    codes, layout = CODES[name], RECORDS[name]
    block, within = part // codes.parts, part % codes.parts
    rows = Rows(layout, [group.at(block * layout.record.itemsize) for group in groups])
    for number in range(codes.subs):
        sub = codes.sub_block(rows, within, number)
        yield replace(sub, codes=_less(sub.codes, codes.offset))


def _block(weight: TensorType, quants: list[Pointer]) -> Iterator[Value]:
    """The codes of a block of q8_0, q4_0 or q4_1."""
    if weight.format.name == "q8_0":
        return (four for _, four in signed_bytes(quants))
    in_order = sorted(nibbles(quants), key=lambda at_and_four: at_and_four[0])
    return _less((four for _, four in in_order), 8 if weight.format.name == "q4_0" else 0)


def _less(codes: Iterator[Value], offset: int) -> Iterator[Value]:
    for four in codes:
        yield four.to(i8) - offset if offset else four.to(i8)
