"""Operations on each element by itself: sums, scales, and the activations of feed-forward nets."""

from collections.abc import Sequence
from math import erf

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need
from hotloop.ir.types import TensorType, tensor

_erf = np.vectorize(erf, otypes=[np.float64])


def _infer_one(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (x,) = types
    activation(x, "the input")
    return x


def _infer_same(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = types
    activation(a, "the first operand")
    need(a == b, f"operands differ: {a} and {b}")
    return a


def _infer_bias(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, vector = types
    _, width = activation(x, "the input")
    need(vector == tensor("f32", width), f"the bias must be f32[{width}], not {vector}")
    return x


def _infer_gelu(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    form = attrs["form"]
    need(form in ("tanh", "erf"), f"form must be tanh or erf, not {form}")
    return _infer_one(types, attrs) if len(types) == 1 else _infer_same(types, attrs)


def _infer_softcap(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(float(attrs["cap"]) > 0, f"cap must be positive, not {attrs['cap']}")
    return _infer_one(types, attrs)


def _float(x: Array) -> Array:
    return np.asarray(x, dtype=np.float32)


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def _infer_gated(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, gate = types
    tokens, _ = activation(x, "the input")
    need(gate == tensor("f32", tokens, 1), f"the gate must be f32[{tokens},1], not {gate}")
    return x


def _gated(x: Array, gate: Array) -> Array:
    """x × sigmoid(gate), with one gate for each token."""
    return _float(x * _sigmoid(gate))


def _add(a: Array, b: Array) -> Array:
    return _float(a + b)


def _scale(x: Array, *, factor: float) -> Array:
    return _float(x * np.float32(factor))


def _softcap(x: Array, *, cap: float) -> Array:
    """cap · tanh(x / cap): nearly x where x is small, never beyond ±cap."""
    return _float(np.tanh(x / np.float32(cap)) * np.float32(cap))


def _swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) × up (Shazeer, 2020, arXiv 2002.05202)."""
    with np.errstate(over="ignore"):
        return _float(gate / (1 + np.exp(-gate)) * up)


def _swiglu_clamped(gate: Array, up: Array, *, alpha: float, limit: float) -> Array:
    """gpt-oss: the gate is clamped from above, the other on both sides and moved by one."""
    gate = np.minimum(gate, np.float32(limit))
    up = np.clip(up, np.float32(-limit), np.float32(limit))
    return _float((up + 1) * (gate * _sigmoid(np.float32(alpha) * gate)))


def _gelu(x: Array, *, form: str) -> Array:
    """x · Φ(x) (Hendrycks and Gimpel, 2016, arXiv 1606.08415), or its approximation by tanh."""
    if form == "erf":
        return _float(x / 2 * (1 + _erf(x / np.sqrt(2.0))))
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return _float(x / 2 * (1 + np.tanh(inner)))


def _geglu(gate: Array, up: Array, *, form: str) -> Array:
    """gelu(gate) × up."""
    return _float(_gelu(gate, form=form) * up)


OPS = (
    OpDef("add", "features", _infer_same, _add, aligned=(0, 1)),
    OpDef("bias", "features", _infer_bias, _add, aligned=(0,)),
    OpDef("gated", "features", _infer_gated, _gated, aligned=(0,)),
    OpDef("scale", "features", _infer_one, _scale, ("factor",), aligned=(0,)),
    OpDef("softcap", "features", _infer_softcap, _softcap, ("cap",), aligned=(0,)),
    OpDef("gelu", "features", _infer_gelu, _gelu, ("form",), aligned=(0,)),
    OpDef("geglu", "features", _infer_gelu, _geglu, ("form",), aligned=(0, 1)),
    OpDef("swiglu", "features", _infer_same, _swiglu, aligned=(0, 1)),
    OpDef(
        "swiglu_clamped",
        "features",
        _infer_same,
        _swiglu_clamped,
        ("alpha", "limit"),
        aligned=(0, 1),
    ),
)
