"""rms_norm: x / sqrt(mean(x²) + eps) × weight, a row per token."""

from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    bool_,
    f32,
    fma,
    loop,
    minimum,
    select,
    sqrt,
    strip,
    sum_lanes,
    vector,
    zeros,
)

LANES = 16
"""Lanes of the sum of squares; rows are padded to as many floats, so the last load stays inside."""


@kernel("rms_norm")
def rms_norm(tile: Tile) -> None:
    width = tile.spec.operands[0].shape[1]
    x, weight = (operand.cast(f32) for operand in tile.operands)
    assert tile.result is not None
    y = tile.result.cast(f32)
    eps = float(tile.spec.attr("eps"))
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        row, out = x.at(token * row_stride(width)), y.at(token * row_stride(width))
        scale = 1.0 / sqrt(_sum_of_squares(row, width) / float(width) + eps)
        for i, lanes in strip(width):
            out.store(row.load(i, lanes) * scale * weight.load(i, lanes), i)


def _sum_of_squares(row: Pointer, width: int) -> Value:
    total = Var(zeros(f32 * LANES))
    whole = width // LANES * LANES
    for i in loop(whole, step=LANES):
        x = row.load(i, LANES)
        total.set(fma(x, x, total))
    if whole < width:
        # The padding may hold anything, NaN included, so it is replaced, not multiplied away.
        inside = vector([i < width - whole for i in range(LANES)], bool_)
        x = select(inside, row.load(whole, LANES), 0)
        total.set(fma(x, x, total))
    return sum_lanes(total)
