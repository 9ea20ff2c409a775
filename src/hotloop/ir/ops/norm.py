"""rms_norm, layer_norm over a token's whole vector; head_norm over each head."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, head_dim, need, one
from hotloop.ir.types import TensorType, tensor


def _infer_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, *vectors = types
    _, width = activation(x, "the input")
    for vector in vectors:
        need(vector == tensor("f32", width), f"the weight must be f32[{width}], not {vector}")
    return x


def _infer_rms_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(len(types) == 2, f"{len(types)} operands, not an input and a weight")
    return _infer_norm(types, attrs)


def _infer_layer_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(len(types) in (2, 3), f"{len(types)} operands, not an input, a weight and maybe a bias")
    return _infer_norm(types, attrs)


def _infer_head_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight = types
    _, width = activation(x, "the input")
    head = int(attrs["head_dim"])
    need(width % head == 0, f"width {width} is not whole heads of {head}")
    need(weight == tensor("f32", head), f"the weight must be f32[{head}], not {weight}")
    return x


def _rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    """Zhang and Sennrich, 2019, arXiv 1910.07467."""
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(x * scale * weight, dtype=np.float32)


def _layer_norm(x: Array, weight: Array, *bias: Array, eps: float) -> Array:
    """Ba, Kiros and Hinton, 2016, arXiv 1607.06450; some models leave out the bias."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(sum(bias, centred * scale * weight), dtype=np.float32)


def _head_norm(x: Array, weight: Array, *, head_dim: int, eps: float) -> Array:
    """rms_norm of each head by itself, all with one weight."""
    heads = x.reshape(x.shape[0], -1, head_dim)
    return _rms_norm(heads, weight, eps=eps).reshape(x.shape)


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
    OpDef(
        "layer_norm",
        "tokens",
        _infer_layer_norm,
        _layer_norm,
        ("eps",),
        aligned=(0,),
        grain=one,
        scalars={"eps": "f32"},
    ),
    OpDef(
        "head_norm",
        "features",
        _infer_head_norm,
        _head_norm,
        ("eps", "head_dim"),
        aligned=(0,),
        grain=head_dim,
        scalars={"eps": "f32"},
    ),
)
