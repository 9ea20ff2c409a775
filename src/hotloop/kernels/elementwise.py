"""Operations on each element by itself, in as many lanes as fit."""

from collections.abc import Callable

from hotloop.kernels.approx import erf, exp, tanh
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Value, constant, f32, loop, maximum, minimum, strip

SILU_FLOOR = -88.0
"""silu is below 1e-35 from here on down; its exp stays finite, so that -infinity gives no NaN."""


@kernel("add")
def add(tile: Tile) -> None:
    _each(tile, lambda a, b: a + b)


@kernel("scale")
def scale(tile: Tile) -> None:
    factor = float(tile.spec.attr("factor"))
    _each(tile, lambda x: x * factor)


@kernel("softcap")
def softcap(tile: Tile) -> None:
    cap = float(tile.spec.attr("cap"))
    _each(tile, lambda x: tanh(x / cap) * cap)


@kernel("swiglu")
def swiglu(tile: Tile) -> None:
    _each(tile, lambda gate, up: _silu(gate) * up)


@kernel("swiglu_clamped")
def swiglu_clamped(tile: Tile) -> None:
    alpha, limit = float(tile.spec.attr("alpha")), float(tile.spec.attr("limit"))

    def combine(gate: Value, up: Value) -> Value:
        # In this order NaN stays NaN. silu(αg) / α is g · sigmoid(αg).
        gate = minimum(constant(limit, gate.type), gate)
        up = maximum(constant(-limit, up.type), minimum(constant(limit, up.type), up))
        return (up + 1.0) * (_silu(gate * alpha) / alpha)

    _each(tile, combine)


@kernel("gelu")
def gelu(tile: Tile) -> None:
    form = _GELU[str(tile.spec.attr("form"))]
    _each(tile, form)


@kernel("geglu")
def geglu(tile: Tile) -> None:
    form = _GELU[str(tile.spec.attr("form"))]
    _each(tile, lambda gate, up: form(gate) * up)


@kernel("bias")
def bias(tile: Tile) -> None:
    """The same vector for every token."""
    stride = row_stride(tile.spec.operands[0].shape[1])
    assert tile.result is not None
    x, vector, y = (p.cast(f32) for p in (*tile.operands, tile.result))
    for token in loop(tile.count):
        row, out = x.at(token * stride), y.at(token * stride)
        for i, lanes in strip(tile.hi, tile.lo):
            out.store(row.load(i, lanes) + vector.load(i, lanes), i)


@kernel("gated")
def gated(tile: Tile) -> None:
    """One gate for all elements of a token."""
    width = tile.spec.operands[0].shape[1]
    assert tile.result is not None
    x, gate, y = (p.cast(f32) for p in (*tile.operands, tile.result))
    for token in loop(tile.count):
        row, out = x.at(token * row_stride(width)), y.at(token * row_stride(width))
        # The lowest gate is such that its exp stays finite.
        low = maximum(constant(SILU_FLOOR, f32), gate.load(token * row_stride(1)))
        factor = 1.0 / (exp(-low) + 1.0)
        for i, lanes in strip(tile.hi, tile.lo):
            out.store(row.load(i, lanes) * factor, i)


def _silu(x: Value) -> Value:
    x = maximum(constant(SILU_FLOOR, x.type), x)  # in this order NaN stays NaN
    return x / (exp(-x) + 1.0)


def _gelu_tanh(x: Value) -> Value:
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654  # sqrt(2 / π)
    return x * 0.5 * (tanh(inner) + 1.0)


def _gelu_erf(x: Value) -> Value:
    return x * 0.5 * (erf(x * 0.7071067811865476) + 1.0)  # sqrt(1 / 2)


_GELU = {"tanh": _gelu_tanh, "erf": _gelu_erf}


def _each(tile: Tile, combine: Callable[..., Value]) -> None:
    """Combine the operands, which all have the result's shape, element by element."""
    stride = row_stride(tile.spec.operands[0].shape[1])
    assert tile.result is not None
    for token in loop(tile.count):
        *operands, y = (p.cast(f32).at(token * stride) for p in (*tile.operands, tile.result))
        for i, lanes in strip(tile.hi, tile.lo):
            y.store(combine(*(operand.load(i, lanes) for operand in operands)), i)
