"""swiglu, add: operations on each element by itself."""

from collections.abc import Callable

from hotloop.kernels.approx import exp
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Value, constant, f32, loop, maximum, strip

SILU_FLOOR = -88.0
"""silu is below 1e-35 from here on down; its exp stays finite, so that -infinity gives no NaN."""


@kernel("add")
def add(tile: Tile) -> None:
    _each(tile, lambda a, b: a + b)


@kernel("swiglu")
def swiglu(tile: Tile) -> None:
    _each(tile, lambda gate, up: _silu(gate) * up)


def _silu(x: Value) -> Value:
    x = maximum(constant(SILU_FLOOR, x.type), x)  # in this order NaN stays NaN
    return x / (exp(-x) + 1.0)


def _each(tile: Tile, combine: Callable[[Value, Value], Value]) -> None:
    stride = row_stride(tile.spec.operands[0].shape[1])
    assert tile.result is not None
    for token in loop(tile.count):
        a, b, y = (p.cast(f32).at(token * stride) for p in (*tile.operands, tile.result))
        for i, lanes in strip(tile.hi, tile.lo):
            y.store(combine(a.load(i, lanes), b.load(i, lanes)), i)
