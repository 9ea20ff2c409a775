"""spread, narrow: a common part added to all heads, and heads cut to a part."""

from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import f32, loop, strip


@kernel("spread")
def spread(tile: Tile) -> None:
    x_type, common_type = tile.spec.operands
    head_dim, part = int(tile.spec.attr("head_dim")), common_type.shape[1]
    assert tile.result is not None
    x, common, y = (p.cast(f32) for p in (*tile.operands, tile.result))
    for token in loop(tile.count):
        row = token * row_stride(x_type.shape[1])
        shared = common.at(token * row_stride(part))
        for head in loop(tile.hi, tile.lo, head_dim):
            source, out = x.at(row + head), y.at(row + head)
            for i, lanes in strip(part):
                out.store(source.load(i, lanes) + shared.load(i, lanes), i)
            for i, lanes in strip(head_dim, part):
                out.store(source.load(i, lanes), i)


@kernel("narrow")
def narrow(tile: Tile) -> None:
    (x_type,) = tile.spec.operands
    head_dim, keep = int(tile.spec.attr("head_dim")), int(tile.spec.attr("keep"))
    assert tile.result is not None
    assert tile.spec.result is not None
    x, y = tile.operands[0].cast(f32), tile.result.cast(f32)
    for token in loop(tile.count):
        row = x.at(token * row_stride(x_type.shape[1]))
        result = y.at(token * row_stride(tile.spec.result.shape[1]))
        for at in loop(tile.hi, tile.lo, keep):
            source, out = row.at(at // keep * head_dim), result.at(at)
            for i, lanes in strip(keep):
                out.store(source.load(i, lanes), i)
