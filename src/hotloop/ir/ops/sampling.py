"""sample, emit, advance: the ops that end a step."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need, one
from hotloop.ir.sample import sample
from hotloop.ir.types import TensorType, tensor


def _infer_sample(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """The fifth operand, a bias for all logits of each sequence, may be left out."""
    logits, ring, pos, control, *bias = types
    tokens, _ = activation(logits, "the logits")
    _sequences(ring, pos, control, tokens)
    need(bias in ([], [logits]), f"the bias must be {logits}, as the logits are")
    return tensor("i32", tokens)


def _infer_emit(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    token, ring, pos, control = types
    need(
        token.format.name == "i32" and len(token.shape) == 1, f"tokens must be i32[T], not {token}"
    )
    _sequences(ring, pos, control, token.shape[0])
    return tensor("i32", 1)


def _sequences(ring: TensorType, pos: TensorType, control: TensorType, tokens: int) -> None:
    """Each token has a sequence of its own: a ring, a position, a control block."""
    need(
        ring.format.name == "i32" and len(ring.shape) == 2 and ring.shape[0] == tokens,
        f"the token rings must be i32[{tokens},capacity], not {ring}",
    )
    need(pos == tensor("i32", tokens), f"positions must be i32[{tokens}], not {pos}")
    need(
        control == tensor("control", tokens),
        f"the control blocks must be control[{tokens}], not {control}",
    )


def _emit(token: Array, ring: Array, pos: Array, control: Array) -> Array:
    """Publish each token for its position pos + 1, and say whether a generation ends with it.

    A ring is as long as the context, so a launch never overtakes its reader.
    """
    ends = False
    for row, (chosen, c) in enumerate(zip(token, control, strict=True)):
        at = int(pos[row]) + 1
        ring[row, at] = chosen
        c["published"] = at + 1
        if chosen in c["stop_ids"][: int(c["stop_count"])]:
            c["finish"] = 2
        elif at >= c["last_pos"]:
            c["finish"] = 1
        elif c["cancel"]:
            c["finish"] = 3
        else:
            continue
        ends = True
    return np.full(1, ends, np.int32)


def _infer_advance(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (pos,) = types
    need(pos.format.name == "i32" and len(pos.shape) == 1, f"positions must be i32[T], not {pos}")
    return pos


def _advance(pos: Array) -> Array:
    return np.asarray(pos + 1, dtype=np.int32)


OPS = (
    OpDef(
        "sample",
        "tokens",
        _infer_sample,
        sample,
        aligned=(0, 1, 2, 3, 4),
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
