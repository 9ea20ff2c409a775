"""gather: columns of an activation in another order."""

from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import f32, loop, minimum, u32


@kernel("gather")
def gather(tile: Tile) -> None:
    """Numbers outside the input read its last column, so no order can reach beyond it."""
    width, columns = tile.spec.operands[0].shape[1], tile.spec.operands[1].shape[0]
    assert tile.result is not None
    x, y = tile.operands[0].cast(f32), tile.result.cast(f32)
    order = tile.operands[1].cast(u32)
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        row, out = x.at(token * row_stride(width)), y.at(token * row_stride(columns))
        for column in loop(columns):
            out.store(row.load(minimum(order.load(column), width - 1)), column)
