"""Products of many tokens with block weights, in AMX's tile registers.

A panel is sixteen rows, two groups, of eight blocks: the weights are unpacked into bytes as tiles
want them, once for all tokens. Two panels share what is loaded of the tokens (7% of a prompt, on a
model with 1B weights). For each 16 tokens, one instruction sums a block's 16 × 16 × 32 products.
The rest is most of the time, scaling 16 × 16 integers for each block as `dot_blocks` does for each
token, in the same order, to the same bits. While tiles are at work half of the vector units stand
still (measured), so the two do not alternate by block but by eight, which is what the first-level
cache holds.

Fewer than sixteen tokens are the vectors' case: a tile of them would take less time, but unpacking
takes the same. The times of all this are in docs/benchmarks.md.
"""

from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_blocks import nibbles
from hotloop.kernels.pack import BLOCK, block_layout
from hotloop.kernels.packed import load_scales_of, load_side_by_side, quants_at
from hotloop.kernels.stream import Share, share_of
from hotloop.lang import Pointer, Value, Var, f32, fma, i32, loop, minimum, select
from hotloop.lang.tiles import TileRegister

FORMATS = ("q4_0", "q4_1", "q8_0")
TOKENS = 16
ROWS = 2 * GROUP
PANELS = 2
"""Panels that share a look at the activations, at most."""
BLOCKS = 8
"""Blocks between two looks at the sums."""

_LINE = 64
_QUANTS = BLOCK * ROWS
_SUMS = TOKENS * ROWS * 4

#: Activations [16, 32], weights [32 / 4, 16 × 4], sums [16, 16].
ACTIVATIONS = TileRegister(0, TOKENS, BLOCK)
WEIGHTS = tuple(TileRegister(1 + i, BLOCK // 4, 4 * ROWS) for i in range(PANELS))
SUMS = tuple(TileRegister(1 + PANELS + i, TOKENS, 4 * ROWS) for i in range(PANELS))
REGISTERS = (ACTIVATIONS, *WEIGHTS, *SUMS)


@dataclass(frozen=True)
class Panel:
    """Scratch memory for the products of sixteen rows."""

    memory: Pointer

    def quants(self, block: Value) -> Pointer:
        """i8|u8 [8][16][4]: byte [v][r][i] is column 4v + i of row r."""
        return self.memory.at(block * _QUANTS)

    def sums(self, block: Value) -> Pointer:
        """i32[16 tokens, 16 rows]."""
        return self.memory.at(block * _SUMS + BLOCKS * _QUANTS).cast(i32)

    def scales(self, block: Value) -> Pointer:
        """f32[16]; the minima follow after those of all blocks."""
        return self.memory.at(block * _LINE + BLOCKS * (_QUANTS + _SUMS)).cast(f32)

    def totals(self, token: Value) -> Pointer:
        """f32[tokens, 16]."""
        start = BLOCKS * (_QUANTS + _SUMS + 2 * _LINE)
        return self.memory.at(token * _LINE + start).cast(f32)

    @staticmethod
    def nbytes(tokens: int) -> int:
        whole = -(-tokens // TOKENS) * TOKENS
        return BLOCKS * (_QUANTS + _SUMS + 2 * _LINE) + whole * _LINE


def fits_tiles(x: TensorType, weight: TensorType) -> bool:
    return x.format.name == "q8" and weight.format.name in FORMATS


def dot_tiles_q8(
    weight: TensorType,
    groups: list[Pointer],
    records: Pointer,
    stride: int,
    count: Value,
    most: int,
    panels: list[Panel],
) -> None:
    """The rows of the groups, two for each panel, with `count` of `most` q8[K] records.

    The records are `stride` bytes apart. Leaves the sums in the panels' totals, sixteen tokens
    after the other. Where the number of tokens is no multiple, the last sixteen begin early enough
    to be whole. The next groups are asked for meanwhile, a little with every block.
    """
    blocks, passes = weight.shape[1] // BLOCK, -(-most // TOKENS)
    nbytes = 2 * block_layout(weight).nbytes
    pairs = [groups[i : i + 2] for i in range(0, len(groups), 2)]
    for start in loop(blocks, step=BLOCKS):
        number = minimum(blocks - start, BLOCKS)
        for block in loop(number):
            for pair, panel in zip(pairs, panels, strict=True):
                _unpack(weight, pair, start + block, panel, block)
        for token in loop(count, step=TOKENS):
            first = records.at(minimum(token, count - TOKENS) * stride)
            for block in loop(number, rolled=True):
                ACTIVATIONS.load(first.at((start + block) * BLOCK), stride)
                for panel, weights, sums in zip(panels, WEIGHTS, SUMS, strict=False):
                    weights.load(panel.quants(block), 4 * ROWS)
                    sums.clear()
                    sums.multiply(ACTIVATIONS, weights, unsigned=weight.format.name == "q4_1")
                    sums.store(panel.sums(block), 4 * ROWS)
            scales = first.at(weight.shape[1])
            for pair, panel in zip(pairs, panels, strict=True):
                following = pair[0].at(nbytes * len(panels))
                ahead = share_of(following, nbytes, blocks, passes, token // TOKENS)
                _scale(weight, scales, stride, panel, start, number, token, ahead)


def _unpack(
    weight: TensorType, groups: list[Pointer], block: Value, panel: Panel, to: Value
) -> None:
    """A block of the weights into the panel, its `to`-th."""
    quants = [quants_at(weight, group, block) for group in groups]
    out = panel.quants(to)
    if weight.format.name == "q8_0":
        for vector in range(8):
            out.store(load_side_by_side(quants, vector * 32, 32), vector * _LINE, align=_LINE)
    else:
        for column, values in nibbles(quants):
            values = values - 8 if weight.format.name == "q4_0" else values
            out.store(values, column // 4 * _LINE, align=_LINE)
    d, m = load_scales_of(weight, groups, block)
    panel.scales(to).store(d, align=_LINE)
    if m is not None:
        panel.scales(to + BLOCKS).store(m, align=_LINE)


def _scale(
    weight: TensorType,
    records: Pointer,
    stride: int,
    panel: Panel,
    start: Value,
    number: Value,
    token: Value,
    ahead: Share,
) -> None:
    """Add the sums of `number` blocks from block `start` on to the totals of sixteen tokens.

    `records` is where the scales of the first of them begin.
    """
    blocks = weight.shape[1] // BLOCK
    scales = [records.at(t * stride).cast(f32).at(start) for t in range(TOKENS)]
    memory = panel.totals(token)
    before = [memory.load(t * ROWS, lanes=ROWS, align=_LINE) for t in range(TOKENS)]
    totals = [Var(select(start > 0, values, 0.0)) for values in before]
    for block in loop(number, rolled=True):
        ahead.prefetch(start + block)
        d = panel.scales(block).load(lanes=ROWS, align=_LINE)
        m = panel.scales(block + BLOCKS).load(lanes=ROWS, align=_LINE)
        for t, total in enumerate(totals):
            products = panel.sums(block).load(t * ROWS, lanes=ROWS, align=_LINE)
            scale = scales[t].load(block).broadcast(ROWS)
            total.set(fma(products.to(f32), d * scale, total))
            if weight.format.name == "q4_1":
                weighted = scales[t].load(block + blocks).broadcast(ROWS)
                total.set(fma(m, weighted, total))
    for t, total in enumerate(totals):
        memory.store(total.get(), t * ROWS, align=_LINE)
