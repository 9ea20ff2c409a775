"""embed: rows of a table, by token."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, need, one
from hotloop.ir.types import TensorType, tensor


def _infer_embed(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    tokens, table = types
    need(tokens.format.name == "i32" and len(tokens.shape) == 1, f"tokens must be i32[T]: {tokens}")
    need(len(table.shape) == 2, f"the table must have two dimensions, not {table}")
    return tensor("f32", tokens.shape[0], table.shape[1])


def _embed(tokens: Array, table: Array) -> Array:
    return np.asarray(table[tokens], dtype=np.float32)


OPS = (OpDef("embed", "tokens", _infer_embed, _embed, aligned=(0,), grain=one),)
