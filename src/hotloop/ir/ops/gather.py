"""gather: columns of an activation in another order."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need, one
from hotloop.ir.types import TensorType, tensor


def _infer_gather(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, order = types
    tokens, _ = activation(x, "the input")
    need(order.format.name == "i32" and len(order.shape) == 1, f"the order must be i32[N]: {order}")
    return tensor("f32", tokens, order.shape[0])


def _gather(x: Array, order: Array) -> Array:
    """Column order[i] of x as column i; an order that is a weight comes as float32."""
    return np.asarray(x[:, order.astype(np.int64)])


OPS = (OpDef("gather", "tokens", _infer_gather, _gather, aligned=(0,), grain=one),)
