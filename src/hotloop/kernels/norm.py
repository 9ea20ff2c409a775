"""rms_norm, layer_norm, head_norm: a vector over the root of its mean square, times a weight."""

from collections.abc import Callable

from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    f32,
    fma,
    loop,
    minimum,
    sqrt,
    strip,
    sum_lanes,
    zeros,
)

LANES = 16
"""Lanes of a sum over a row; what does not fill them is filled up with zeros."""


@kernel("rms_norm")
def rms_norm(tile: Tile) -> None:
    """x / sqrt(mean(x²) + eps) × weight, a row per token."""
    width = tile.spec.operands[0].shape[1]
    x, weight = (operand.cast(f32) for operand in tile.operands)
    assert tile.result is not None
    y = tile.result.cast(f32)
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        at = token * row_stride(width)
        _rms_norm(x.at(at), y.at(at), weight, width, tile.scalar("eps"))


@kernel("head_norm")
def head_norm(tile: Tile) -> None:
    """rms_norm of each head, all with one weight."""
    stride = row_stride(tile.spec.operands[0].shape[1])
    head_dim = int(tile.spec.attr("head_dim"))
    x, weight = (operand.cast(f32) for operand in tile.operands)
    assert tile.result is not None
    y = tile.result.cast(f32)
    for token in loop(tile.count):
        for head in loop(tile.hi, tile.lo, head_dim):
            at = token * stride + head
            _rms_norm(x.at(at), y.at(at), weight, head_dim, tile.scalar("eps"))


def _rms_norm(row: Pointer, out: Pointer, weight: Pointer, width: int, eps: Value) -> None:
    squares = _sum(row, width, _square)
    scale = 1.0 / sqrt(squares / float(width) + eps)
    for i, lanes in strip(width):
        out.store(row.load(i, lanes) * scale * weight.load(i, lanes), i)


@kernel("layer_norm")
def layer_norm(tile: Tile) -> None:
    """(x - mean(x)) / sqrt(variance(x) + eps) × weight, plus the bias if there is one."""
    width = tile.spec.operands[0].shape[1]
    x, weight, *biases = (operand.cast(f32) for operand in tile.operands)
    assert tile.result is not None
    y = tile.result.cast(f32)
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        row, out = x.at(token * row_stride(width)), y.at(token * row_stride(width))
        mean = _sum(row, width, lambda value, total: total + value) / float(width)
        squares = _sum(row, width, _square, mean)
        scale = 1.0 / sqrt(squares / float(width) + tile.scalar("eps"))
        for i, lanes in strip(width):
            value = (row.load(i, lanes) - mean) * scale * weight.load(i, lanes)
            for bias in biases:
                value = value + bias.load(i, lanes)
            out.store(value, i)


def _square(value: Value, total: Value) -> Value:
    return fma(value, value, total)


def _sum(
    row: Pointer, width: int, add: Callable[[Value, Value], Value], less: Value | None = None
) -> Value:
    """Fold the row, each element less `less`, in `LANES` sums that are added pairwise."""

    def load(i: Value | int, lanes: int) -> Value:
        value = row.load(i, lanes)
        return value if less is None else value - less

    total = Var(zeros(f32 * LANES))
    rest = width % LANES
    for i in loop(width - rest, step=LANES):
        total.set(add(load(i, LANES), total))
    if rest:
        filled = [*range(rest), *[rest] * (LANES - rest)]
        last = load(width - rest, rest).shuffle(filled, zeros(f32 * rest))
        total.set(add(last, total))
    return sum_lanes(total)
