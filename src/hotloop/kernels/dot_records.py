"""Dot products with record formats (`codes`), and their rows as numbers.

With 8-bit activations s·p, a sub-block's products are summed as integers, exactly, and scaled once:

    Σ (scale·(code - offset) + minimum) · s·p
        =  scale·s · (Σ code·p - offset · Σp)  +  minimum · s·Σp

where the activation's record holds the sums of p. Sub-blocks add up in the order of their columns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.codes import CODES, Codes, Index, Rows, SubBlock
from hotloop.kernels.records import RECORDS
from hotloop.kernels.stream import Share, prefetch_ahead
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
    u8,
    u32,
    zeros,
)

CHAINS = 4
#: The greatest int16, which bounds sums of 8-bit products in 16-bit lanes, and the greatest int8.
_INT16, _INT8 = 32767, 127


@dataclass(frozen=True)
class Activation:
    """One token's q8[K] record (layout: `tile`)."""

    record: Pointer
    columns: int

    def scale(self, column: Value) -> Value:
        return self._scales(0).load(column // 32)

    def weighted_sum(self, column: Value, width: int) -> Value:
        """scale × Σp of the sub-block that begins at `column`."""
        if width == 32:
            return self._scales(self.columns // 32).load(column // 32)
        return self.scale(column) * self.sum(column, width).to(f32)

    def sum(self, column: Value, width: int) -> Value:
        """Σp, i32."""
        sums = self._scales(self.columns // 16).cast(i32)
        first = sums.load(column // 16)
        return first if width == 16 else first + sums.load(column // 16 + 1)

    def four(self, column: Value, rows: int) -> Value:
        """Four neighbouring int8, for all rows."""
        return self.record.at(column).cast(i32).load().broadcast(rows).bitcast(i8 * (4 * rows))

    def _scales(self, at: int) -> Pointer:
        return self.record.at(self.columns).cast(f32).at(at)


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
    activations = [Activation(record, weight.shape[1]) for record in tokens]
    rows = GROUP * len(groups)
    totals = [Var(zeros(f32 * rows)) for _ in tokens]
    # One token is what memory must limit; for several, unpacking is shared, and code stays small.
    for first, sub in _sub_blocks(weight, groups, ahead=ahead, unrolled=len(tokens) == 1):
        sums = _products(codes, sub, activations, first, rows)
        for x, products, total in zip(activations, sums, totals, strict=True):
            scale = sub.scale * x.scale(first)
            total.set(fma(products.to(f32), scale, total))
            if sub.minimum is not None:
                weighted = x.weighted_sum(first, codes.width).broadcast(rows)
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
    for first, sub in _sub_blocks(weight, groups):
        for lane, four in enumerate(sub.codes):
            for byte, code in enumerate(_bytes(four)):
                values = _values(sub, code - codes.offset)
                for x, sums in zip(tokens, chains, strict=True):
                    factor = x.cast(f32).load(first + (4 * lane + byte)).broadcast(rows)
                    sums[byte].set(fma(values, factor, sums[byte]))
    return [(a + b) + (c + d) for a, b, c, d in chains]


def write_record_row(table: TensorType, group: Pointer, lane: Value, out: Pointer) -> None:
    """Row `lane` of a packed group as float32."""
    codes = CODES[table.format.name]
    for first, sub in _sub_blocks(table, [group], row=lane):
        for place, four in enumerate(sub.codes):
            out.store(_values(sub, four.to(i32) - codes.offset), first + 4 * place)


def _values(sub: SubBlock, codes: Value) -> Value:
    values = sub.scale * codes.to(f32)
    return values if sub.minimum is None else values + sub.minimum


def _sub_blocks(
    weight: TensorType,
    groups: list[Pointer],
    *,
    ahead: Share | None = None,
    row: Value | None = None,
    unrolled: bool = False,
) -> Iterator[tuple[Value, SubBlock]]:
    """Trace the loops over blocks and what they consist of: each sub-block's first column, and it.

    Unrolled sub-blocks shift by constants, but take as many times the code.
    """
    layout, codes = RECORDS[weight.format.name], CODES[weight.format.name]
    nbytes = layout.record.itemsize
    step = -(-nbytes // codes.parts)
    for block in loop(weight.shape[1] // layout.columns):
        rows = Rows(layout, [group.at(block * nbytes) for group in groups], row)
        for part in _loop(codes.parts):
            if ahead is not None:
                ahead.prefetch(block * codes.parts + part)
            elif row is None:
                prefetch_ahead(rows.records[0].at(part * step), step)
            for sub in range(codes.subs) if unrolled else _loop(codes.subs):
                number = part * codes.subs + sub
                first = block * layout.columns + number * codes.width
                yield first, codes.sub_block(rows, part, sub)


def _loop(count: int) -> Iterable[Index]:
    return loop(count) if count > 1 else (0,)


def parts_of_row(weight: TensorType) -> int:
    """How many parts of blocks a row has: so often `ahead` is asked for."""
    name = weight.format.name
    return weight.shape[1] // RECORDS[name].columns * CODES[name].parts


def _products(
    codes: Codes, sub: SubBlock, tokens: list[Activation], first: Value, rows: int
) -> list[Value]:
    """Σ (code - offset) · p of a sub-block for each token: an i32 for each row."""
    target = current().module.target
    offset = codes.offset
    sums = [zeros(i32 * rows) for _ in tokens]
    narrow = [zeros(i16 * (2 * rows)) for _ in tokens]
    in_pairs = not target.sums_four
    held, most = 0, _INT16 // (2 * _INT8 * codes.largest)
    for lane, four in enumerate(sub.codes):
        xs = [x.four(first + 4 * lane, rows) for x in tokens]
        if four.type.scalar == i8 and target.vnni and len(tokens) > 1:
            # One operation for all tokens, where moving signs is one for each.
            four, offset = four.bitcast(u8 * four.type.lanes) ^ 128, 128
        elif four.type.scalar == u8 and target.dotprod:
            four, offset = four.to(i8) - codes.offset, 0
        if four.type.scalar == i8:
            sums = [dot4_signed(four, x, total) for x, total in zip(xs, sums, strict=True)]
        elif not in_pairs:
            sums = [dot4(four, x, total) for x, total in zip(xs, sums, strict=True)]
        else:
            # Lanes of 16 bits, as many as surely fit, are summed before they are widened.
            if held == most:
                sums = [a + add_pairs(b) for a, b in zip(sums, narrow, strict=True)]
                held = 0
            products = [dot2(four, x) for x in xs]
            narrow = [a + b for a, b in zip(narrow, products, strict=True)] if held else products
            held += 1
    if held:
        sums = [a + add_pairs(b) for a, b in zip(sums, narrow, strict=True)]
    if offset:
        shifts = [(x.sum(first, codes.width) * offset).broadcast(rows) for x in tokens]
        sums = [a - b for a, b in zip(sums, shifts, strict=True)]
    return sums


def _bytes(four: Value) -> Iterator[Value]:
    """The four columns of a vector of codes, each as i32 lanes of the rows."""
    signed = four.type.scalar == i8
    lanes = four.bitcast((i32 if signed else u32) * (four.type.lanes // 4))
    for byte in range(4):
        if signed:
            yield (lanes << (24 - 8 * byte)) >> 24
        else:
            yield ((lanes >> (8 * byte)) & 255).to(i32)
