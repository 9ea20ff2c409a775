"""rms_norm."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need, one
from hotloop.ir.types import TensorType, tensor


def _infer_rms_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight = types
    _, width = activation(x, "the input")
    need(weight == tensor("f32", width), f"the weight must be f32[{width}], not {weight}")
    return x


def _rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(x * scale * weight, dtype=np.float32)


OPS = (
    OpDef(
        "rms_norm",
        "tokens",
        _infer_rms_norm,
        _rms_norm,
        ("eps",),
        aligned=(0,),
        grain=one,
        scalars={"eps": "f32"},
    ),
)
