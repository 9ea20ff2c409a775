"""Rows of a packed weight times tokens that lie one after the other: what linear and experts share.

The rows of a group are computed for several tokens at once, so that unpacking the weights is paid
once for all of them; where vectors have 512 bits, for two groups at once as well. Tokens that do
not fill a block are computed in a last one that overlaps with the one before. Either way a (row,
token) pair sees the same operations in the same order: neither the number of tokens nor the tiling
nor the width of the vectors changes a bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_blocks import dot_blocks_f32, dot_blocks_q8
from hotloop.kernels.dot_plain import dot_plain
from hotloop.kernels.dot_records import dot_records_f32, dot_records_q8, parts_of_row
from hotloop.kernels.dot_tiles import (
    PANELS,
    ROWS,
    TOKENS,
    PanelLayout,
    Panels,
    Registers,
    dot_tiles_q8,
    fits_tiles,
)
from hotloop.kernels.pack import BLOCK, group_bytes
from hotloop.kernels.records import RECORDS
from hotloop.kernels.stream import Share, share_of
from hotloop.kernels.tile import q8_stride, row_stride
from hotloop.kernels.whole_codes import Parts
from hotloop.lang import Pointer, Value, current, if_else, loop, minimum, prefetch
from hotloop.lang.tiles import tile_registers


def product_scratch(x: TensorType, weight: TensorType) -> int:
    """Bytes of panels, where some targets put the weights of two groups for many tokens."""
    if x.shape[0] < TOKENS or not fits_tiles(x, weight):
        return 0
    return PANELS * PanelLayout.of(weight).nbytes(x.shape[0])


def takes_tiles(x: TensorType, weight: TensorType) -> bool:
    """Whether the target being traced for has tile registers, and the product is one for them."""
    return current().module.target.amx and x.shape[0] >= TOKENS and fits_tiles(x, weight)


def record_bytes(x: TensorType) -> int:
    """Bytes from one token of an activation to the next."""
    width = x.shape[1]
    return q8_stride(width) if x.format.name == "q8" else row_stride(width) * 4


@dataclass(frozen=True)
class Product:
    """y[t, n] = Σ_k x[t, k] · w[n, k] for `count` tokens, eight rows n at a time, one per lane."""

    x: TensorType
    """[T, K], T tokens at most."""
    weight: TensorType
    """[N, K]."""
    packed: Pointer
    """Its first group."""
    records: Pointer
    """The first token."""
    count: Value
    scratch: Pointer
    """`product_scratch` bytes."""
    place: Callable[[Value], Pointer]
    """Where a token's results begin: f32[N]. It may be written more than once."""
    usual: int
    """Tokens that there usually are: what is asked for ahead is shared out among their passes."""
    bias: Pointer | None = None
    """f32[N], added to the results."""
    least: int = 1
    """`count` is at least this: smaller blocks need no code."""

    def rows(self, first: Value, end: Value) -> None:
        """Compute the groups `first` … `end` of rows."""
        sizes = [size for size in self._block_sizes() if size <= self.x.shape[0]]
        self._all_tokens(first, end, sizes)

    def _block_sizes(self) -> tuple[int, ...]:
        """How many tokens the registers hold, the largest block first."""
        if takes_tiles(self.x, self.weight):
            return (TOKENS, 4, 1)
        if self.weight.format.quantised and self.x.format.name == "q8":
            return (8, 4, 1) if current().module.target.vnni512 else (4, 1)
        return (2, 1)

    def _all_tokens(self, first: Value, end: Value, sizes: list[int]) -> None:
        """In blocks of the largest size that the number of tokens allows; the last size is 1."""
        size, *smaller = sizes
        if not smaller or size <= self.least:
            self._all_rows(first, end, size)
            return
        with if_else(self.count >= size) as otherwise:
            self._all_rows(first, end, size)
            otherwise()
            self._all_tokens(first, end, smaller)

    def _all_rows(self, first: Value, end: Value, block: int) -> None:
        """All rows, for blocks of as many tokens."""
        paired = first + (end - first) // 2 * 2
        in_tiles = block == TOKENS
        if in_tiles:
            with tile_registers(Registers(Parts.of(self.weight).width).all()):
                for group in loop(paired, first, step=2 * PANELS):
                    self._panels(group, minimum((paired - group) // 2, PANELS))
            first, block = paired, 4
        if not in_tiles and self._takes_pairs(block):
            for group in loop(paired, first, step=2):
                self._groups(group, 2, block)
            first = paired
        for group in loop(end, first):
            self._groups(group, 1, block)

    def _takes_pairs(self, block: int) -> bool:
        """Whether a vector holds the sums of two groups.

        Unpacking then takes half the instructions for a byte, which shows even with one token: more
        bytes are under way in what a core looks ahead. Of plain weights, which need no unpacking,
        one long stream for one token is faster than two (BF16: 1.07 ×).
        """
        if not current().module.target.vnni512:
            return False
        if self.weight.format.quantised:
            return self.x.format.name == "q8"
        return block > 1

    def _groups(self, group: Value, count: int, block: int) -> None:
        """The rows of `count` groups from number `group` on, for all tokens."""
        groups = self._packed(group, count)
        for start in loop(self.count, step=block):
            # The last block begins early enough to be whole; what it computes again is the same.
            first = start if block == 1 else minimum(start, self.count - block)
            tokens = [first + t for t in range(block)]
            for token, sums in zip(tokens, self._dots(groups, tokens, start // block), strict=True):
                self._put(token, group, sums)

    def _panels(self, group: Value, count: Value) -> None:
        """The rows of `count` pairs of groups from number `group` on, for all tokens."""
        tokens = self.x.shape[0]
        panels = Panels(self.scratch, PanelLayout.of(self.weight), tokens, count)
        # A line of the result is a token's, with a stride that no prefetcher follows.
        for token in loop(self.count):
            for i in loop(count):
                prefetch(self.place(token).at((group + i * 2) * GROUP), locality=2)
        packed, stride = self._packed(group, 1)[0], record_bytes(self.x)
        dot_tiles_q8(self.weight, packed, self.records, stride, self.count, self.usual, panels)
        for start in loop(self.count, step=TOKENS):
            first = minimum(start, self.count - TOKENS)
            for i in loop(count):
                totals = panels.panel(i).totals(start)
                for t in range(TOKENS):
                    self._put(first + t, group + i * 2, totals.load(t * ROWS, lanes=ROWS))

    def _packed(self, group: Value, count: int) -> list[Pointer]:
        return [self.packed.at((group + i) * group_bytes(self.weight)) for i in range(count)]

    def _put(self, token: Value, group: Value, sums: Value) -> None:
        if self.bias is not None:
            sums = sums + self.bias.load(group * GROUP, sums.type.lanes)
        self.place(token).store(sums, group * GROUP)

    def _dots(self, groups: list[Pointer], tokens: list[Value], number: Value) -> list[Value]:
        """The dot products of the rows of `groups` with block number `number` of the tokens."""
        weight, quantised = self.weight, self.weight.format.quantised
        records = [self.records.at(token * record_bytes(self.x)) for token in tokens]
        if not quantised:
            return dot_plain(weight, groups, records)
        if weight.format.name in RECORDS:
            if self.x.format.name != "q8":
                return dot_records_f32(weight, groups, records)
            ahead = self._ahead(groups, len(tokens), parts_of_row(weight), number)
            return dot_records_q8(weight, groups, records, ahead)
        if self.x.format.name != "q8":
            return dot_blocks_f32(weight, groups[0], records)
        ahead = self._ahead(groups, len(tokens), weight.shape[1] // BLOCK, number)
        return dot_blocks_q8(weight, groups, records, ahead)

    def _ahead(self, groups: list[Pointer], tokens: int, steps: int, number: Value) -> Share | None:
        """Of one token, what follows closely; of several, their share of the next groups."""
        if tokens == 1:
            return None
        nbytes, passes = len(groups) * group_bytes(self.weight), -(-self.usual // tokens)
        return share_of(groups[0].at(nbytes), nbytes, steps, passes, number)
