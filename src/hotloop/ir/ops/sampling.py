"""sample, emit, advance: the ops that end a step."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need, one, position
from hotloop.ir.sample import sample
from hotloop.ir.types import TensorType, tensor


def _infer_sample(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    logits, ring, pos, control = types
    tokens, _ = activation(logits, "the logits")
    need(tokens == 1, f"sampling takes one row of logits, not {tokens}")
    _ring(ring)
    position(pos)
    _control(control)
    return tensor("i32", 1)


def _infer_emit(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    token, ring, pos, control = types
    need(token == tensor("i32", 1), f"a token must be i32[1], not {token}")
    _ring(ring)
    position(pos)
    _control(control)
    return tensor("i32", 1)


def _ring(type: TensorType) -> None:
    need(
        type.format.name == "i32" and len(type.shape) == 1,
        f"the token ring must be i32[capacity], not {type}",
    )


def _control(type: TensorType) -> None:
    need(type == tensor("control", 1), f"the control block must be control[1], not {type}")


def _emit(token: Array, ring: Array, pos: Array, control: Array) -> Array:
    """Publish the token for position pos + 1, and say whether the generation ends with it.

    The ring is as long as the context, so a launch never overtakes its reader.
    """
    at, c = int(pos[0]) + 1, control[0]
    ring[at] = token[0]
    c["published"] = at + 1
    if token[0] in c["stop_ids"][: int(c["stop_count"])]:
        c["finish"] = 2
    elif at >= c["last_pos"]:
        c["finish"] = 1
    elif c["cancel"]:
        c["finish"] = 3
    else:
        return np.zeros(1, np.int32)
    return np.ones(1, np.int32)


def _infer_advance(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (pos,) = types
    position(pos)
    return pos


def _advance(pos: Array) -> Array:
    return np.asarray(pos + 1, dtype=np.int32)


OPS = (
    OpDef(
        "sample",
        "one",
        _infer_sample,
        sample,
        aligned=(0, 1, 2, 3),
        grain=one,
        starts_kernel=True,
    ),
    OpDef(
        "emit",
        "one",
        _infer_emit,
        _emit,
        aligned=(0, 1, 2, 3),
        writes=(1, 3),
        grain=one,
    ),
    OpDef("advance", "one", _infer_advance, _advance, aligned=(0,), grain=one),
)
