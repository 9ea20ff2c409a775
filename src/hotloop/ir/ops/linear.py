"""quantise, linear: activations in 8 bit, and matrix products."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need, one
from hotloop.ir.types import TensorType, tensor


def _infer_quantise(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (x,) = types
    tokens, width = activation(x, "the input")
    need(width % 32 == 0, f"8-bit activations need a width divisible by 32, not {width}")
    return tensor("q8", tokens, width)


def _quantise(x: Array) -> Array:
    """Round to 8 bit, a scale per 32: the values that the integer dot products see."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    normal = scale >= np.float32(2.0**-126)  # below, the inverse is infinite: all become zero
    inverse = np.where(normal, 1, 0) / np.where(normal, scale, np.float32(1))
    rounded = np.rint(blocks * inverse.astype(np.float32)) * scale
    return np.asarray(rounded.reshape(x.shape), dtype=np.float32)


def _infer_linear(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight = types
    need(x.format.name in ("f32", "q8") and len(x.shape) == 2, f"the input must be [T,K], not {x}")
    need(len(weight.shape) == 2, f"the weight must be [N,K], not {weight}")
    need(
        x.shape[1] == weight.shape[1],
        f"the input has {x.shape[1]} columns and the weight {weight.shape[1]}",
    )
    return tensor("f32", x.shape[0], weight.shape[0])


def _linear(x: Array, weight: Array) -> Array:
    return np.asarray(x @ weight.T, dtype=np.float32)


OPS = (
    OpDef("quantise", "tokens", _infer_quantise, _quantise, aligned=(0,), grain=one),
    OpDef("linear", "features", _infer_linear, _linear, variants=(1,)),
)
