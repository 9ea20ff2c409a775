"""swiglu, add."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need
from hotloop.ir.types import TensorType


def _infer_same(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = types
    activation(a, "the first operand")
    need(a == b, f"operands differ: {a} and {b}")
    return a


def _swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) × up (Shazeer, 2020, arXiv 2002.05202)."""
    with np.errstate(over="ignore"):
        return np.asarray(gate / (1 + np.exp(-gate)) * up, dtype=np.float32)


def _add(a: Array, b: Array) -> Array:
    return np.asarray(a + b, dtype=np.float32)


OPS = (
    OpDef("swiglu", "features", _infer_same, _swiglu, aligned=(0, 1)),
    OpDef("add", "features", _infer_same, _add, aligned=(0, 1)),
)
