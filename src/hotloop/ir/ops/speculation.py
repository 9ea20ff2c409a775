"""draft, accept, reached, filled: steps that guess tokens, and check the guesses.

A step takes in T tokens of one sequence: the last one, and guesses of what comes next. Row t of the
logits is right where the guesses up to t are; so what is sampled from row 0 stands, and what is
sampled from the others while each guess is the token that was sampled before it (Leviathan et al.,
2022, arXiv 2211.17192). Since a draw depends on history, seed and position alone
(`hotloop.ir.sample`), the tokens are those of single steps, greedy or not.

Guesses are looked up in the sequence itself: what followed when it last went like this (Saxena,
2023, "Prompt Lookup Decoding"). They lie in the token ring behind the published tokens, where
sampling reads them as history.
"""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, need, one
from hotloop.ir.ops.sampling import need_sequences, publish
from hotloop.ir.types import TensorType, tensor

#: Tokens that must have been the same before a guess is made, and how many are compared at most.
SHORTEST, LONGEST = 2, 8
#: In place of a token where there is no guess.
NONE = -1


def _sequence(ring: TensorType, pos: TensorType, control: TensorType) -> None:
    need_sequences(ring, pos, control, 1)


def _tokens(type: TensorType, what: str) -> None:
    need(type.format.name == "i32" and len(type.shape) == 1, f"{what} must be i32[T], not {type}")


def guessing(run: int) -> int:
    """The tokens of a step after a run of so many: 4 after 2, 8 after 4, 16 after 8.

    Kernels compute tokens in blocks of powers of two.
    """
    return int(2 << (run.bit_length() - 1))


def _infer_draft(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    pos, ring, control = types
    _sequence(ring, pos, control)
    tokens = int(attrs["tokens"])
    need(1 <= tokens < ring.shape[1], f"a step of {tokens} tokens with a ring of {ring.shape[1]}")
    return tensor("i32", tokens)


def _draft(pos: Array, ring: Array, control: Array, *, tokens: int) -> Array:
    """The token at `pos`, and guesses of those after it, as long as their turn can come.

    They follow the longest run of tokens, `SHORTEST` to `LONGEST`, that is the same as the last
    ones; of several the latest. A run that goes on into the guesses repeats itself. The longer it
    is, the more guesses are worth their time (`guessing`).
    """
    history, at = ring[0], int(pos[0])
    out = np.full(tokens, NONE, np.int32)
    out[0] = history[at]
    best, source = SHORTEST, NONE
    for end in range(at):
        length = 0
        while length < min(LONGEST, end + 1) and history[end - length] == history[at - length]:
            length += 1
        if length >= best:
            best, source = length, end
    if source != NONE:
        for i in range(1, min(tokens, guessing(best), int(control["last_pos"][0]) - at)):
            history[at + i] = out[i] = history[source + i]
    return out


def _infer_accept(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    sampled, token, ring, pos, control = types
    _tokens(token, "tokens")
    need(sampled == token, f"as many must be sampled as are taken in: {sampled} and {token}")
    _sequence(ring, pos, control)
    return tensor("i32", 1)


def _accept(sampled: Array, token: Array, ring: Array, pos: Array, control: Array) -> Array:
    """Publish what was sampled after right guesses; say whether the generation ends with it."""
    control["steps"] += 1
    control["drafted"] += np.count_nonzero(token[1:] != NONE)
    for row, chosen in enumerate(sampled):
        if publish(int(chosen), int(pos[0]) + 1 + row, ring[0], control[0]):
            return np.ones(1, np.int32)
        if row + 1 == len(token) or token[row + 1] != chosen:
            break
    return np.zeros(1, np.int32)


def _infer_reached(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (control,) = types
    need(control == tensor("control", 1), f"the control block must be control[1], not {control}")
    return tensor("i32", 1)


def _reached(control: Array) -> Array:
    """The position of the last published token."""
    return np.asarray(control["published"] - 1, dtype=np.int32)


def _infer_filled(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (token,) = types
    _tokens(token, "tokens")
    return tensor("i32", 1)


def _filled(token: Array) -> Array:
    """How many tokens there are, up to the first `NONE`."""
    return np.full(1, np.logical_and.accumulate(token != NONE).sum(), np.int32)


OPS = (
    OpDef(
        "draft",
        "one",
        _infer_draft,
        _draft,
        ("tokens",),
        aligned=(0, 1, 2),
        writes=(1,),
        grain=one,
    ),
    OpDef(
        "accept",
        "one",
        _infer_accept,
        _accept,
        aligned=(0, 1, 2, 3, 4),
        writes=(2, 4),
        grain=one,
    ),
    OpDef("reached", "one", _infer_reached, _reached, aligned=(0,), grain=one),
    OpDef("filled", "one", _infer_filled, _filled, aligned=(0,), grain=one),
)
