"""Products of many tokens with quantised weights, in AMX's tile registers.

A panel is sixteen rows, two groups, of eight sub-blocks: the weights are unpacked into bytes as
tiles want them, once for all tokens. Two panels share what is loaded of the tokens (7% of a prompt,
on a model with 1B weights). For each 16 tokens, one instruction sums a sub-block's 16 × 16 × 32
products (where sub-blocks have 16 columns, half as many in the same time). The rest is most of the
time, scaling 16 × 16 integers for each sub-block as `dot_blocks` and `dot_records` do for each
token, in the same order, to the same bits. While tiles are at work half of the vector units stand
still (measured), so the two do not alternate by sub-block but by eight, which is what the
first-level cache holds.

Fewer than sixteen tokens are the vectors' case: a tile of them would take less time, but unpacking
takes the same. The times of all this are in docs/benchmarks.md.
"""

from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_records import Activation
from hotloop.kernels.pack import group_bytes
from hotloop.kernels.stream import Share, share_of
from hotloop.kernels.whole_codes import Parts, sub_blocks
from hotloop.lang import Pointer, Value, Var, f32, fma, i32, if_else, loop, minimum, select
from hotloop.lang.tiles import TileRegister

TOKENS = 16
ROWS = 2 * GROUP
PANELS = 2
"""Panels that share a look at the activations, at most."""
_AT_ONCE = 8
"""Sub-blocks between two looks at the sums, or as many as a part has."""

_LINE = 4 * ROWS
_SUMS = TOKENS * _LINE


@dataclass(frozen=True)
class Registers:
    """For sub-blocks of `width` columns."""

    width: int

    @property
    def activations(self) -> TileRegister:
        """i8[16 tokens, width]."""
        return TileRegister(0, TOKENS, self.width)

    @property
    def weights(self) -> tuple[TileRegister, ...]:
        """i8[width / 4][16 rows][4], for each panel."""
        return tuple(TileRegister(1 + i, self.width // 4, _LINE) for i in range(PANELS))

    @property
    def sums(self) -> tuple[TileRegister, ...]:
        """i32[16 tokens, 16 rows], for each panel."""
        return tuple(TileRegister(1 + PANELS + i, TOKENS, _LINE) for i in range(PANELS))

    def all(self) -> tuple[TileRegister, ...]:
        return self.activations, *self.weights, *self.sums


@dataclass(frozen=True)
class PanelLayout:
    """Where a panel keeps what of some sub-blocks of sixteen rows, in bytes from its start."""

    parts: Parts

    @staticmethod
    def of(weight: TensorType) -> "PanelLayout":
        return PanelLayout(Parts.of(weight))

    @property
    def parts_at_once(self) -> int:
        return max(1, _AT_ONCE // self.parts.subs)

    @property
    def _subs(self) -> int:
        return self.parts_at_once * self.parts.subs

    @property
    def quants(self) -> int:
        """Bytes of a sub-block's codes."""
        return self.parts.width * ROWS

    @property
    def sums(self) -> int:
        return self._subs * self.quants

    @property
    def scales(self) -> int:
        return self.sums + self._subs * _SUMS

    @property
    def seconds(self) -> int:
        return self.scales + self._subs * _LINE

    @property
    def totals(self) -> int:
        return self.seconds + self._subs * _LINE

    def nbytes(self, tokens: int) -> int:
        return self.totals + -(-tokens // TOKENS) * _SUMS


@dataclass(frozen=True)
class Panel:
    """Scratch memory for the products of sixteen rows."""

    memory: Pointer
    layout: PanelLayout

    def quants(self, sub: Value) -> Pointer:
        """i8[width / 4][16][4]: byte [v][r][i] is column 4v + i of row r."""
        return self.memory.at(sub * self.layout.quants)

    def sums(self, sub: Value) -> Pointer:
        """i32[16 tokens, 16 rows]."""
        return self.memory.at(sub * _SUMS + self.layout.sums).cast(i32)

    def scale(self, sub: Value) -> Pointer:
        """f32[16]."""
        return self.memory.at(sub * _LINE + self.layout.scales).cast(f32)

    def second(self, sub: Value) -> Pointer:
        """f32[16], the minimum, or i32[16], the zero, of a format that has one of them."""
        return self.memory.at(sub * _LINE + self.layout.seconds)

    def totals(self, token: Value) -> Pointer:
        """f32[tokens, 16]."""
        return self.memory.at(token * _LINE + self.layout.totals).cast(f32)


@dataclass(frozen=True)
class Panels:
    """Panels one after the other in scratch memory, at most `PANELS`."""

    memory: Pointer
    layout: PanelLayout
    tokens: int
    """Tokens that each has room for."""
    count: Value

    def panel(self, number: Value | int) -> Panel:
        return Panel(self.memory.at(number * self.layout.nbytes(self.tokens)), self.layout)


def fits_tiles(x: TensorType, weight: TensorType) -> bool:
    return x.format.name == "q8" and weight.format.quantised and weight.format.integers


def dot_tiles_q8(
    weight: TensorType,
    packed: Pointer,
    records: Pointer,
    stride: int,
    count: Value,
    most: int,
    panels: Panels,
) -> None:
    """The rows of the groups from `packed` on, two for each panel, with `count` of `most` q8[K]
    records.

    The records are `stride` bytes apart. Leaves the sums in the panels' totals, sixteen tokens
    after the other. Where the number of tokens is no multiple, the last sixteen begin early enough
    to be whole. The next groups are asked for meanwhile, a little with every sub-block.
    """
    layout, passes = panels.layout, -(-most // TOKENS)
    parts, nbytes = layout.parts, group_bytes(weight)
    registers, steps = Registers(parts.width), parts.count * parts.subs
    for part in loop(parts.count, step=layout.parts_at_once):
        number = minimum(parts.count - part, layout.parts_at_once)
        start, subs = part * parts.subs, number * parts.subs
        seconds = _Seconds()
        for p in loop(panels.count):
            pair = [packed.at((2 * p + i) * nbytes) for i in range(2)]
            for i in loop(number):
                seconds = _unpack(weight, pair, part + i, panels.panel(p), i * parts.subs)
        for token in loop(count, step=TOKENS):
            first = records.at(minimum(token, count - TOKENS) * stride)
            columns = first.at(start * parts.width)
            with if_else(panels.count > 1) as otherwise:
                _multiply(registers, columns, stride, [panels.panel(0), panels.panel(1)], subs)
                otherwise()
                _multiply(registers, columns, stride, [panels.panel(0)], subs)
            xs = [Activation.of(first.at(t * stride), weight.shape[1]) for t in range(TOKENS)]
            for p in loop(panels.count):
                following = packed.at((panels.count + p) * (2 * nbytes))
                ahead = share_of(following, 2 * nbytes, steps, passes, token // TOKENS)
                _scale(xs, panels.panel(p), start, subs, token, seconds, ahead)


def _multiply(
    registers: Registers, columns: Pointer, stride: int, panels: list[Panel], subs: Value
) -> None:
    """Sixteen tokens' `subs` sub-blocks of `columns` times those of the panels."""
    for sub in loop(subs):
        registers.activations.load(columns.at(sub * registers.width), stride)
        for panel, w, sums in zip(panels, registers.weights, registers.sums, strict=False):
            w.load(panel.quants(sub), _LINE)
            sums.clear()
            sums.multiply(registers.activations, w, unsigned=False)
            sums.store(panel.sums(sub), _LINE)


@dataclass(frozen=True)
class _Seconds:
    """What a format's sub-blocks have besides a scale."""

    minima: bool = False
    zeros: bool = False


def _unpack(
    weight: TensorType, groups: list[Pointer], part: Value, panel: Panel, to: Value
) -> _Seconds:
    """A part of the weights into the panel, its sub-blocks from number `to` on."""
    seconds = _Seconds()
    for number, sub in enumerate(sub_blocks(weight, groups, part)):
        out = panel.quants(to + number)
        for lane, four in enumerate(sub.codes):
            out.store(four, lane * _LINE, align=_LINE)
        panel.scale(to + number).store(sub.scale, align=_LINE)
        second = panel.second(to + number)
        if sub.minimum is not None:
            second.cast(f32).store(sub.minimum, align=_LINE)
        if sub.zero is not None:
            second.cast(i32).store(sub.zero, align=_LINE)
        seconds = _Seconds(sub.minimum is not None, sub.zero is not None)
    return seconds


def _scale(
    xs: list[Activation],
    panel: Panel,
    start: Value,
    subs: Value,
    token: Value,
    seconds: _Seconds,
    ahead: Share,
) -> None:
    """Add the sums of `subs` sub-blocks from number `start` on to the totals of sixteen tokens."""
    memory, width = panel.totals(token), panel.layout.parts.width
    before = [memory.load(t * ROWS, lanes=ROWS, align=_LINE) for t in range(TOKENS)]
    totals = [Var(select(start > 0, values, 0.0)) for values in before]
    for sub in loop(subs):
        ahead.prefetch(start + sub)
        column = (start + sub) * width
        d = panel.scale(sub).load(lanes=ROWS, align=_LINE)
        for t, (x, total) in enumerate(zip(xs, totals, strict=True)):
            products = panel.sums(sub).load(t * ROWS, lanes=ROWS, align=_LINE)
            if seconds.zeros:
                zero = panel.second(sub).cast(i32).load(lanes=ROWS, align=_LINE)
                products = products - zero * x.sum(column, width).broadcast(ROWS)
            total.set(fma(products.to(f32), d * x.scale(column).broadcast(ROWS), total))
            if seconds.minima:
                m = panel.second(sub).cast(f32).load(lanes=ROWS, align=_LINE)
                total.set(fma(m, x.weighted_sum(column, width).broadcast(ROWS), total))
    for t, total in enumerate(totals):
        memory.store(total.get(), t * ROWS, align=_LINE)
