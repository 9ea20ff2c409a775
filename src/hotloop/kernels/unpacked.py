"""Codes of `hotloop.ir.unpacked`: nibbles looked up in a table; 16 columns share a scale."""

from collections.abc import Callable, Iterator

from hotloop.ir.unpacked import BOOKS, FACTORS
from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock, field
from hotloop.lang import Value, f32, i8, lookup


def _sub_block(name: str) -> Callable[[Rows, Index, Index], SubBlock]:
    book = BOOKS[name] + (0,) * (16 - len(BOOKS[name]))

    def sub_block(rows: Rows, part: Index, sub: Index) -> SubBlock:
        def codes() -> Iterator[Value]:
            for lane in range(4):
                yield lookup(book, field(rows.lanes("fours", part * 4, lane), 4, at=sub * 4), i8)

        scale = rows.byte("scales", part * 2, sub, signed=True).to(f32)
        return SubBlock(codes(), rows.half("d") * scale * FACTORS[name])

    return sub_block


for name in BOOKS:
    CODES[name] = Codes(_sub_block(name), width=16, largest=127, signed=True, parts=8, subs=2)
