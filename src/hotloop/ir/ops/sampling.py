"""sample, emit, advance: the ops that end a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, need, one, positions
from hotloop.ir.sample import sample
from hotloop.ir.types import TensorType, tensor


def _infer_sample(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Tokens follow each other in one sequence, or each has its own.

    The fifth operand, a bias for all logits of each sequence, may be left out.
    """
    logits, ring, pos, control, *bias = types
    tokens, vocabulary = activation(logits, "the logits")
    positions(pos, tokens)
    sequences = pos.shape[0]
    need_sequences(ring, pos, control, sequences)
    wanted = tensor("f32", sequences, vocabulary)
    need(bias in ([], [wanted]), f"the bias must be {wanted}")
    return tensor("i32", tokens)


def _infer_emit(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    token, ring, pos, control = types
    need(
        token.format.name == "i32" and len(token.shape) == 1, f"tokens must be i32[T], not {token}"
    )
    need_sequences(ring, pos, control, token.shape[0])
    return tensor("i32", 1)


def need_sequences(ring: TensorType, pos: TensorType, control: TensorType, tokens: int) -> None:
    """Each sequence has a ring, a position, a control block."""
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
    for row, chosen in enumerate(token):
        ends |= publish(int(chosen), int(pos[row]) + 1, ring[row], control[row])
    return np.full(1, ends, np.int32)


def publish(token: int, at: int, ring: Array, control: Any) -> bool:
    """Hand one sequence its token for position `at`; whether its generation ends with it."""
    ring[at] = token
    control["published"] = at + 1
    if token in control["stop_ids"][: int(control["stop_count"])]:
        control["finish"] = 2
    elif at >= control["last_pos"]:
        control["finish"] = 1
    elif control["cancel"]:
        control["finish"] = 3
    else:
        return False
    return True


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
