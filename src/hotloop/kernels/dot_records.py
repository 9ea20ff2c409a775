"""Dot products with record formats (`codes`), and their rows as numbers.

With 8-bit activations s·p, a sub-block's products are summed as integers, exactly, and scaled once:

    Σ (scale·(code - offset - zero) + minimum) · s·p
        =  scale·s · (Σ code·p - (offset + zero) · Σp)  +  minimum · s·Σp

where the activation's record holds the sums of p. Sub-blocks add up in the order of their columns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock
from hotloop.kernels.records import RECORDS
from hotloop.kernels.stream import Share, line_share, prefetch_ahead
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
    i32,
    loop,
    u8,
    u32,
    zeros,
)

CHAINS = 4
#: The greatest int16, which bounds sums of 8-bit products in 16-bit lanes, and the greatest int8.
_INT16, _INT8 = 32767, 127


@dataclass(frozen=True)
class Activation:
    """One token's q8[K] record (layout: `tile`), or what is left of it from some column on."""

    quants: Pointer
    scales: Pointer
    weighted_sums: Pointer
    sums: Pointer

    @staticmethod
    def of(record: Pointer, columns: int) -> "Activation":
        scales = record.at(columns).cast(f32)
        sums = scales.at(columns // 16).cast(i32)
        return Activation(record, scales, scales.at(columns // 32), sums)

    def from_block(self, block: Value) -> "Activation":
        """From column 32 · `block` on."""
        return Activation(
            self.quants.at(block * 32),
            self.scales.at(block),
            self.weighted_sums.at(block),
            self.sums.at(block * 2),
        )

    def four(self, column: Index, rows: int) -> Value:
        """Four neighbouring int8, for all rows."""
        return self.quants.at(column).cast(i32).load().broadcast(rows).bitcast(i8 * (4 * rows))

    def scale(self, column: Index) -> Value:
        return self.scales.load(column >> 5)

    def weighted_sum(self, column: Index, width: int) -> Value:
        """scale × Σp of the sub-block that begins at `column`."""
        if width == 32:
            return self.weighted_sums.load(column >> 5)
        return self.scale(column) * self.sum(column, width).to(f32)

    def sum(self, column: Index, width: int) -> Value:
        """Σp, i32."""
        first = self.sums.load(column >> 4)
        return first if width == 16 else first + self.sums.load((column >> 4) + 1)


def dot_records_q8(
    weight: TensorType,
    groups: list[Pointer],
    tokens: list[Pointer],
    ahead: Share | None = None,
) -> list[Value]:
    """The rows of one packed group, or of two as one vector, with each token's q8[K] record.

    What is asked for meanwhile is `ahead`, or what follows closely where that is None.
    """
    codes = CODES[weight.format.name]
    whole = [Activation.of(record, weight.shape[1]) for record in tokens]
    rows = GROUP * len(groups)
    totals = [Var(zeros(f32 * rows)) for _ in tokens]
    # One token is what memory must limit; for several, unpacking is shared, and code stays small.
    alone = len(tokens) == 1
    for number, part in _parts(weight, groups, ahead=ahead, unrolled=alone):
        xs = [x.from_block(number * (codes.columns // 32)) for x in whole]
        for column, sub in part.sub_blocks(unrolled=alone):
            sums = _products(codes, sub, xs, column, rows)
            for x, products, total in zip(xs, sums, totals, strict=True):
                total.set(fma(products.to(f32), sub.scale * x.scale(column), total))
                if sub.minimum is not None:
                    weighted = x.weighted_sum(column, codes.width).broadcast(rows)
                    total.set(fma(sub.minimum, weighted, total))
    return [total.get() for total in totals]


def dot_records_f32(
    weight: TensorType, groups: list[Pointer], tokens: list[Pointer]
) -> list[Value]:
    """The rows of one packed group, or of two as one vector, with each token's f32[K].

    Weights are dequantised as `hotloop.ir.formats` does. Column k adds to chain k mod 4, and the
    chains are summed pairwise at the end.
    """
    codes = CODES[weight.format.name]
    rows = GROUP * len(groups)
    chains = [[Var(zeros(f32 * rows)) for _ in range(CHAINS)] for _ in tokens]
    for number, part in _parts(weight, groups):
        for column, sub in part.sub_blocks():
            first = number * codes.columns + column
            for lane, four in enumerate(sub.codes):
                for byte, code in enumerate(_bytes(four)):
                    values = _values(codes, sub, code)
                    for x, sums in zip(tokens, chains, strict=True):
                        factor = x.cast(f32).load(first + (4 * lane + byte)).broadcast(rows)
                        sums[byte].set(fma(values, factor, sums[byte]))
    return [(a + b) + (c + d) for a, b, c, d in chains]


def write_record_row(table: TensorType, group: Pointer, lane: Value, out: Pointer) -> None:
    """Row `lane` of a packed group as float32."""
    codes = CODES[table.format.name]
    for number, part in _parts(table, [group], row=lane):
        for column, sub in part.sub_blocks():
            first = number * codes.columns + column
            for place, four in enumerate(sub.codes):
                out.store(_values(codes, sub, four.to(i32)), first + 4 * place)


def _values(codes: Codes, sub: SubBlock, code: Value) -> Value:
    """The float32 weights of i32 codes."""
    if codes.offset:
        code = code - codes.offset
    if sub.zero is not None:
        code = code - sub.zero
    values = sub.scale * codes.number(code)
    return values if sub.minimum is None else values + sub.minimum


@dataclass(frozen=True)
class _Part:
    """A part of the blocks of some rows, in the loop that is being traced."""

    codes: Codes
    rows: Rows
    number: Index
    """In the block."""
    close: list[Pointer]
    """From where on what follows closely is to be asked for; empty: nothing."""

    def sub_blocks(self, *, unrolled: bool = False) -> Iterator[tuple[Index, SubBlock]]:
        """Each sub-block's first column, from the part's, and it.

        Unrolled sub-blocks shift by constants, but take as many times the code.
        """
        subs = self.codes.subs
        nbytes = -(-self.rows.layout.record.itemsize // self.codes.parts)
        if not unrolled:
            self._prefetch(0, nbytes)
            for number in _loop(subs):
                yield (
                    number * self.codes.width,
                    self.codes.sub_block(self.rows, self.number, number),
                )
            return
        for sub in range(subs):
            # A few lines at a time: a core waits for few.
            self._prefetch(line_share(nbytes, subs, sub), line_share(nbytes, subs, sub + 1))
            yield sub * self.codes.width, self.codes.sub_block(self.rows, self.number, sub)

    def _prefetch(self, first: int, end: int) -> None:
        for position in self.close:
            prefetch_ahead(position.at(first), end - first)


def _parts(
    weight: TensorType,
    groups: list[Pointer],
    *,
    ahead: Share | None = None,
    row: Value | None = None,
    unrolled: bool = False,
) -> Iterator[tuple[Value, _Part]]:
    """Trace the loops over blocks and their parts; gives the number of a part in the row, and it.

    What is asked for meanwhile is `ahead`, or what follows closely; for one row, nothing.
    """
    layout, codes = RECORDS[weight.format.name], CODES[weight.format.name]
    nbytes = layout.record.itemsize
    step = -(-nbytes // codes.parts)
    for block in loop(weight.shape[1] // layout.columns):
        rows = Rows(layout, [group.at(block * nbytes) for group in groups], row)
        for part in _loop(codes.parts, unrolled=unrolled):
            number = block * codes.parts + part
            if ahead is not None:
                ahead.prefetch(number)
            close = [record.at(part * step) for record in rows.records]
            yield number, _Part(codes, rows, part, close if ahead is None and row is None else [])


def _loop(count: int, *, unrolled: bool = False) -> Iterable[Index]:
    return loop(count, unroll=count if unrolled else 1) if count > 1 else (0,)


def parts_of_row(weight: TensorType) -> int:
    """How many parts of blocks a row has: so often `ahead` is asked for."""
    name = weight.format.name
    return weight.shape[1] // RECORDS[name].columns * CODES[name].parts


def _products(
    codes: Codes, sub: SubBlock, tokens: list[Activation], column: Index, rows: int
) -> list[Value]:
    """Σ (code - offset - zero) · p of a sub-block for each token: an i32 for each row."""
    target = current().module.target
    # Signed codes become unsigned by one operation for all tokens, where moving signs from one
    # factor to the other is one for each, and several with 512 bits; unsigned ones signed, where
    # signed ones are multiplied.
    lifted = codes.signed and target.vnni and (len(tokens) > 1 or rows > GROUP)
    lowered = not codes.signed and target.dotprod
    offset = 128 if lifted else 0 if lowered else codes.offset
    sums = [_start(sub, x, column, codes.width, offset, rows) for x in tokens]
    narrow: list[Value] = []
    held, most = 0, _INT16 // (2 * _INT8 * codes.largest)
    for lane, four in enumerate(sub.codes):
        xs = [x.four(column + 4 * lane, rows) for x in tokens]
        if lifted:
            four = four.bitcast(u8 * four.type.lanes) ^ 128
        elif lowered:
            four = four.to(i8) - codes.offset
        if four.type.scalar == i8:
            sums = [dot4_signed(four, x, total) for x, total in zip(xs, sums, strict=True)]
        elif target.sums_four:
            sums = [dot4(four, x, total) for x, total in zip(xs, sums, strict=True)]
        else:
            # Lanes of 16 bits, as many as surely fit, are summed before they are widened.
            if held == most:
                sums = [a + add_pairs(b) for a, b in zip(sums, narrow, strict=True)]
                held = 0
            products = [dot2(four, x) for x in xs]
            narrow = [a + b for a, b in zip(narrow, products, strict=True)] if held else products
            held += 1
    return [a + add_pairs(b) for a, b in zip(sums, narrow, strict=True)] if held else sums


def _start(
    sub: SubBlock, x: Activation, column: Index, width: int, offset: int, rows: int
) -> Value:
    """-(offset + zero) · Σp, from where the products of a sub-block are added up."""
    if not offset and sub.zero is None:
        return zeros(i32 * rows)
    total = x.sum(column, width)
    start = (total * -offset).broadcast(rows)
    return start if sub.zero is None else start - sub.zero * total.broadcast(rows)


def _bytes(four: Value) -> Iterator[Value]:
    """The four columns of a vector of codes, each as i32 lanes of the rows."""
    signed = four.type.scalar == i8
    lanes = four.bitcast((i32 if signed else u32) * (four.type.lanes // 4))
    for byte in range(4):
        if signed:
            yield (lanes << (24 - 8 * byte)) >> 24
        else:
            yield ((lanes >> (8 * byte)) & 255).to(i32)
