"""expert_linear, expert_mix: products with the rows of the experts that a token goes to.

A weight [E, N, K] is packed as the matrix [E · N, K], so each expert is a matrix of its own within
it, and its rows are computed as those of `linear`. The tokens of a slot are put in the order of
their experts, those of an expert gathered, and multiplied together, so that an expert's rows are
read once for them. Each (token, slot, row) is by itself, whatever the tokens: neither their number
nor the tiling changes a bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_tiles import PANELS
from hotloop.kernels.pack import BLOCK, group_bytes, matrix
from hotloop.kernels.product import Product, product_scratch, record_bytes
from hotloop.kernels.tile import OpSpec, Tile, kernel, round_up, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    constant,
    f32,
    fma,
    i32,
    i64,
    if_,
    loop,
    maximum,
    minimum,
    select,
    strip,
)

_CHUNK = 2 * PANELS
"""Groups of rows whose products are computed before they are mixed: what tiles take at once."""


@dataclass(frozen=True)
class _Layout:
    """What a thread's scratch memory holds, in bytes from its start."""

    x: TensorType
    """[T, K], what experts take."""
    weight: TensorType
    """[E, N, K]."""

    @property
    def tokens(self) -> int:
        return self.x.shape[0]

    @property
    def order(self) -> int:
        """i32[T]: the tokens, those of the same expert one after the other."""
        return round_up(product_scratch(self.x, matrix(self.weight)), 64)

    @property
    def starts(self) -> int:
        """i32[E + 1]: where each expert's begin."""
        return self.order + round_up(4 * self.tokens, 64)

    @property
    def gathered(self) -> int:
        """The activations of an expert's tokens."""
        return self.starts + round_up(4 * (self.weight.shape[0] + 1), 64)

    @property
    def products(self) -> int:
        """f32[T, 8 · _CHUNK]."""
        return self.gathered + self.tokens * record_bytes(self.x)

    @property
    def nbytes(self) -> int:
        return self.products + self.tokens * _CHUNK * GROUP * 4


def _scratch(spec: OpSpec) -> int:
    return _layout(spec).nbytes


def _layout(spec: OpSpec) -> _Layout:
    x, weight = spec.operands[:2]
    return _Layout(TensorType(x.format, (x.shape[0], weight.shape[2])), weight)


@kernel("expert_linear", scratch=_scratch)
def expert_linear(tile: Tile) -> None:
    experts = _Experts(tile)
    groups = experts.rows // GROUP
    first, end = tile.lo // GROUP, (tile.hi + (GROUP - 1)) // GROUP
    assert tile.result is not None
    y, stride = tile.result.cast(f32), row_stride(experts.slots * experts.rows)
    for slot in loop((end + (groups - 1)) // groups, first // groups):
        before = slot * groups
        out = y.at(slot * experts.rows)
        for some in experts.of_slot(slot):
            product = some.product(_scattered(some, out, stride))
            product.rows(maximum(first - before, 0), minimum(end - before, groups))


@kernel("expert_mix", scratch=_scratch)
def expert_mix(tile: Tile) -> None:
    """Slot after slot: long streams of weights, and sums in the order of slots."""
    experts = _Experts(tile)
    first, end = tile.lo // GROUP, (tile.hi + (GROUP - 1)) // GROUP
    assert tile.result is not None
    y, weights = tile.result.cast(f32), tile.operands[3].cast(f32)
    products = tile.scratch.at(experts.layout.products).cast(f32)
    for slot in loop(experts.slots):
        for some in experts.of_slot(slot):
            for chunk in loop(end, first, step=_CHUNK):
                behind = minimum(chunk + _CHUNK, end)
                of_first = products.at(chunk * -GROUP)
                some.product(_in_order(of_first, _CHUNK * GROUP)).rows(chunk, behind)
                for i in loop(some.count):
                    token = some.token(i)
                    out = y.at(token * row_stride(experts.rows))
                    weight = weights.load(token * row_stride(experts.slots) + slot)
                    for group in loop(behind, chunk):
                        sums = of_first.load(i * (_CHUNK * GROUP) + group * GROUP, GROUP)
                        before = select(slot > 0, out.load(group * GROUP, GROUP), 0)
                        out.store(fma(sums, weight.broadcast(GROUP), before), group * GROUP)


def _scattered(some: "_Together", out: Pointer, stride: int) -> Callable[[Value], Pointer]:
    """Results where their tokens have them."""
    return lambda number: out.at(some.token(number) * stride)


def _in_order(out: Pointer, stride: int) -> Callable[[Value], Pointer]:
    """Results one after the other."""
    return lambda number: out.at(number * stride)


class _Experts:
    """The stacked weights, the ids and the bias of the op being traced."""

    def __init__(self, tile: Tile) -> None:
        spec = tile.spec
        self.tile = tile
        self.count, self.rows, _ = spec.operands[1].shape
        self.slots = spec.operands[2].shape[1]
        self.split = spec.name == "expert_mix"  # a slot takes its part of the activation
        self.layout = _layout(spec)
        self.ids = tile.operands[2].cast(i32)
        before = 4 if self.split else 3
        self.bias = [bias.cast(f32) for bias in tile.operands[before:]]

    def of_slot(self, slot: Value) -> Iterator["_Together"]:
        """Trace a loop over the experts of a slot, and for each the tokens that go to it."""
        first = constant(0, i64)
        if self.layout.tokens == 1:
            record = self._record_of_slot(slot)
            yield _Together(self, self._chosen(first, slot), record, first, constant(1, i64))
            return
        self._sort(slot)
        starts = self._scratch(self.layout.starts).cast(i32)
        records = self._scratch(self.layout.gathered)
        for expert in loop(self.count):
            start = starts.load(expert).to(i64)
            count = starts.load(expert + 1).to(i64) - start
            with if_(count > 0):
                some = _Together(self, expert, records, start, count)
                for i in loop(count):
                    self._gather(some.token(i), slot, records.at(i * record_bytes(self.layout.x)))
                yield some

    def _chosen(self, token: Value, slot: Value) -> Value:
        return self.ids.load(token * row_stride(self.slots) + slot).to(i64)

    def _scratch(self, at: int) -> Pointer:
        return self.tile.scratch.at(at)

    def _sort(self, slot: Value) -> None:
        """Put the tokens in the order of their experts, by counting them."""
        order = self._scratch(self.layout.order).cast(i32)
        starts = self._scratch(self.layout.starts).cast(i32)
        tokens = self.tile.count
        for expert in loop(self.count):
            starts.store(constant(0, i32), expert)
        starts.store(tokens.to(i32), self.count)
        for token in loop(tokens):
            expert = self._chosen(token, slot)
            starts.store(starts.load(expert) + 1, expert)
        for expert in loop(self.count, 1):
            starts.store(starts.load(expert) + starts.load(expert - 1), expert)
        # These are the ends so far: tokens, the last one first, go in front of what is there.
        for number in loop(tokens):
            token = tokens - 1 - number
            expert = self._chosen(token, slot)
            place = starts.load(expert) - 1
            starts.store(place, expert)
            order.store(token.to(i32), place.to(i64))

    def _record_of_slot(self, slot: Value) -> Pointer:
        """What the one token there is gives to an expert."""
        whole = self.tile.operands[0]
        if not self.split:
            return whole
        if self.layout.x.format.name != "q8":
            return whole.at(slot * (self.layout.x.shape[1] * 4))
        record = self._scratch(self.layout.gathered)
        self._gather(constant(0, i64), slot, record)
        return record

    def _gather(self, token: Value, slot: Value, into: Pointer) -> None:
        """Copy what a token gives to the expert of a slot."""
        whole = self.tile.operands[0].at(token * record_bytes(self.tile.spec.operands[0]))
        for to, source, nbytes in self._pieces(slot):
            piece, out = whole.at(source), into.at(to)
            for i, lanes in strip(nbytes, lanes=32):
                out.store(piece.load(i, lanes), i)

    def _pieces(self, slot: Value) -> list[tuple[int, Value | int, int]]:
        """(where to, where from, bytes) of a slot's part of an activation as one of its own."""
        x, columns = self.layout.x, self.layout.x.shape[1]
        if not self.split:
            return [(0, 0, record_bytes(x))]
        if x.format.name != "q8":
            return [(0, slot * (columns * 4), columns * 4)]
        blocks, width = columns // BLOCK, self.slots * columns
        of_all = width // BLOCK
        return [  # quants, scales, scales × sums, sums, as `hotloop.kernels.tile` lays them out
            (0, slot * columns, columns),
            (columns, slot * (blocks * 4) + width, blocks * 4),
            (columns + blocks * 4, slot * (blocks * 4) + (width + of_all * 4), blocks * 4),
            (columns + blocks * 8, slot * (blocks * 8) + (width + of_all * 8), blocks * 8),
        ]


@dataclass(frozen=True)
class _Together:
    """The tokens of a slot that go to the same expert."""

    experts: _Experts
    expert: Value
    records: Pointer
    """What they give to it, one after the other."""
    start: Value
    """Of these tokens, in the order of all."""
    count: Value

    def token(self, number: Value) -> Value:
        """Which token one of them is."""
        layout = self.experts.layout
        if layout.tokens == 1:
            return number
        order = self.experts.tile.scratch.at(layout.order).cast(i32)
        return order.load(self.start + number).to(i64)

    def product(self, place: Callable[[Value], Pointer]) -> Product:
        """What the expert makes of them; `place` as `Product` has it, of their numbers."""
        experts, layout = self.experts, self.experts.layout
        weight = TensorType(layout.weight.format, layout.weight.shape[1:])
        first = self.expert * (experts.rows // GROUP) * group_bytes(weight)
        return Product(
            layout.x,
            weight,
            packed=experts.tile.operands[1].at(first),
            records=self.records,
            count=self.count,
            scratch=experts.tile.scratch,
            place=place,
            usual=max(1, layout.tokens // experts.count),
            bias=experts.bias[0].at(self.expert * experts.rows) if experts.bias else None,
        )
