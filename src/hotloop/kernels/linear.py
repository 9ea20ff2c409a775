"""linear: y[t, n] = Σ_k x[t, k] · w[n, k], eight rows n at a time, one per vector lane.

The rows of a group are computed for several tokens at once, so that unpacking the weights is paid
once for all of them; where vectors have 512 bits, for two groups at once as well. Tokens that do
not fill a block are computed in a last one that overlaps with the one before. Either way a (row,
token) pair sees the same operations in the same order: neither the number of tokens nor the tiling
nor the width of the vectors changes a bit.
"""

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_blocks import dot_blocks_f32, dot_blocks_q8
from hotloop.kernels.dot_plain import dot_plain
from hotloop.kernels.dot_records import dot_records_f32, dot_records_q8, parts_of_row
from hotloop.kernels.dot_tiles import (
    PANELS,
    ROWS,
    TOKENS,
    Panel,
    PanelLayout,
    Registers,
    dot_tiles_q8,
    fits_tiles,
)
from hotloop.kernels.pack import BLOCK, group_bytes
from hotloop.kernels.records import RECORDS
from hotloop.kernels.stream import share_of
from hotloop.kernels.tile import OpSpec, Tile, kernel, q8_stride, row_stride
from hotloop.kernels.whole_codes import Parts
from hotloop.lang import (
    Pointer,
    Value,
    constant,
    current,
    f32,
    i64,
    if_else,
    loop,
    minimum,
    prefetch,
)
from hotloop.lang.tiles import tile_registers


def _scratch(spec: OpSpec) -> int:
    """Panels, where some targets put the weights of two groups for many tokens."""
    x, weight = spec.operands
    if x.shape[0] < TOKENS or not fits_tiles(x, weight):
        return 0
    return PANELS * PanelLayout.of(weight).nbytes(x.shape[0])


@kernel("linear", scratch=_scratch)
def linear(tile: Tile) -> None:
    x, weight = tile.spec.operands
    sizes = _block_sizes(x, weight)
    _all_tokens(tile, [size for size in sizes if size <= x.shape[0]])


def _block_sizes(x: TensorType, weight: TensorType) -> tuple[int, ...]:
    """How many tokens the registers hold, the largest block first."""
    if weight.format.quantised and x.format.name == "q8":
        target = current().module.target
        if target.amx and fits_tiles(x, weight) and x.shape[0] >= TOKENS:
            return (TOKENS, 4, 1)
        return (8, 4, 1) if target.vnni512 else (4, 1)
    return (2, 1)


def dot_rows(x: TensorType, weight: TensorType, groups: list[Pointer], record: Pointer) -> Value:
    """The rows of a packed group of `weight` [N, K] with one token's activation [K].

    Two groups may come as one vector where `_takes_pairs`.
    """
    if not weight.format.quantised:
        return dot_plain(weight, groups, [record])[0]
    if weight.format.name in RECORDS:
        dot_records = dot_records_q8 if x.format.name == "q8" else dot_records_f32
        return dot_records(weight, groups, [record])[0]
    if x.format.name != "q8":
        return dot_blocks_f32(weight, groups[0], [record])[0]
    return dot_blocks_q8(weight, groups, [record], ahead=None)[0]


def _all_tokens(tile: Tile, sizes: list[int]) -> None:
    """In blocks of the largest of `sizes` that the number of tokens allows; the last size is 1."""
    size, *smaller = sizes
    if not smaller:
        _all_rows(tile, size)
        return
    with if_else(tile.count >= size) as otherwise:
        _all_rows(tile, size)
        otherwise()
        _all_tokens(tile, smaller)


def _all_rows(tile: Tile, block: int) -> None:
    """All rows of the tile, for blocks of as many tokens."""
    x, weight = tile.spec.operands
    first, end = tile.lo // GROUP, (tile.hi + (GROUP - 1)) // GROUP
    paired = first + (end - first) // 2 * 2
    in_tiles = block == TOKENS
    if in_tiles:
        whole = first + (end - first) // (2 * PANELS) * (2 * PANELS)
        with tile_registers(Registers(Parts.of(weight).width).all()):
            for group in loop(whole, first, step=2 * PANELS):
                _panels(tile, group, PANELS)
            for group in loop(paired, whole, step=2):
                _panels(tile, group, 1)
        first, block = paired, 4
    if not in_tiles and _takes_pairs(x, weight):
        for group in loop(paired, first, step=2):
            _group(tile, group, 2, block)
        first = paired
    for group in loop(end, first):
        _group(tile, group, 1, block)


def _takes_pairs(x: TensorType, weight: TensorType) -> bool:
    """Whether a vector holds the sums of two groups.

    Unpacking then takes half the instructions for a byte, which shows even with one token: more
    bytes are under way in what a core looks ahead.
    """
    if not current().module.target.vnni512:
        return False
    return x.format.name == "q8" or not weight.format.quantised


def _group(tile: Tile, group: Value, count: int, block: int) -> None:
    """The rows of `count` groups from number `group` on, for all tokens."""
    weight = tile.spec.operands[1]
    assert tile.result is not None
    y, stride = tile.result.cast(f32), row_stride(weight.shape[0])
    groups = [tile.operands[1].at((group + i) * group_bytes(weight)) for i in range(count)]
    for start in loop(tile.count, step=block):
        # The last block begins early enough to be whole; what it computes again is the same.
        first = start if block == 1 else minimum(start, tile.count - block)
        tokens = [first + t for t in range(block)]
        for token, sums in zip(tokens, _dots(tile, groups, tokens, start // block), strict=True):
            y.store(sums, token * stride + group * GROUP)


def _panels(tile: Tile, group: Value, count: int) -> None:
    """The rows of `count` pairs of groups from number `group` on, for all tokens."""
    x, weight = tile.spec.operands
    assert tile.result is not None
    y, stride, nbytes = tile.result.cast(f32), row_stride(weight.shape[0]), group_bytes(weight)
    groups = [tile.operands[1].at((group + i) * nbytes) for i in range(2 * count)]
    layout = PanelLayout.of(weight)
    scratch = [tile.scratch.at(i * layout.nbytes(x.shape[0])) for i in range(count)]
    panels = [Panel(memory, layout) for memory in scratch]
    records = _record(tile, constant(0, i64))
    stride_x = q8_stride(x.shape[1])
    # A line of the result is a token's, with a stride that no prefetcher follows.
    for token in loop(tile.count):
        for i in range(count):
            prefetch(y.at(token * stride + (group + 2 * i) * GROUP), locality=2)
    dot_tiles_q8(weight, groups, records, stride_x, tile.count, x.shape[0], panels)
    for start in loop(tile.count, step=TOKENS):
        first = minimum(start, tile.count - TOKENS)
        for t in range(TOKENS):
            for i, panel in enumerate(panels):
                values = panel.totals(start).load(t * ROWS, lanes=ROWS)
                y.store(values, (first + t) * stride + (group + 2 * i) * GROUP)


def _dots(tile: Tile, groups: list[Pointer], tokens: list[Value], number: Value) -> list[Value]:
    """The dot products of the rows of `groups` with block number `number` of the tokens."""
    x, weight = tile.spec.operands
    records = [_record(tile, token) for token in tokens]
    if len(tokens) == 1:
        return [dot_rows(x, weight, groups, records[0])]
    if not weight.format.quantised:
        return dot_plain(weight, groups, records)
    nbytes = len(groups) * group_bytes(weight)
    passes = -(-x.shape[0] // len(tokens))
    if weight.format.name in RECORDS:
        if x.format.name != "q8":
            return dot_records_f32(weight, groups, records)
        steps = parts_of_row(weight)
        ahead = share_of(groups[0].at(nbytes), nbytes, steps, passes, number)
        return dot_records_q8(weight, groups, records, ahead)
    if x.format.name != "q8":
        return dot_blocks_f32(weight, groups[0], records)
    ahead = share_of(groups[0].at(nbytes), nbytes, x.shape[1] // BLOCK, passes, number)
    return dot_blocks_q8(weight, groups, records, ahead)


def _record(tile: Tile, token: Value) -> Pointer:
    """Where token number `token` of the activation begins."""
    x = tile.spec.operands[0]
    width = x.shape[1]
    stride = q8_stride(width) if x.format.name == "q8" else row_stride(width) * 4
    return tile.operands[0].at(token * stride)
