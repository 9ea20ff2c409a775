"""The meaning of sampling: from a row of logits to a token, by thresholds.

Every filter keeps the tokens whose logit reaches a threshold, so no sort is needed and ties are
kept together:

    penalty   logits of tokens among the last `repeat_last_n` are divided by `repeat_penalty` where
              positive and multiplied where negative (Keskar et al., 2019, arXiv 1909.05858)
    frequency subtracted from the logit of a token for each time that the output has it
    presence  subtracted once from the logit of a token that the output has (both as in OpenAI's
              API; the prompt does not count)
    bias      added to all logits; -infinity forbids a token
    top-k     the k-th largest logit
    top-p     the largest threshold whose kept tokens hold at least `top_p` of the probability that
              top-k left
    min-p     the largest logit + ln(min_p)

Then one token is drawn from the kept ones with probabilities softmax(logit / temperature): the
first, in the order of ids, whose running sum exceeds u times the total. A temperature of 0 takes
the largest logit, the lowest id among equals.

u is a function of seed and position alone: the first word of Philox 4×64-10 (Salmon et al., 2011,
"Parallel random numbers: as easy as 1, 2, 3") with key (seed, 0) and counter (position, 0, 0, 0),
its upper 24 bits over 2^24. So seed → tokens is one function, whatever runs it.

For that, probabilities are integers: 2^30 × exp(logit - largest), the fraction cut off. Their sums
are exact in any order, and a token below 2^-30 of the likeliest is never drawn. `exp` and `log`
are those of `hotloop.ir.approx`, so that the compiled kernel sees the very same integers.

A logit that is NaN counts as the smallest float32, and infinities as the smallest and largest.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.approx import exp, log

Array = NDArray[Any]

LARGEST = float(np.finfo(np.float32).max)

ONE = 2.0**30
"""The weight of the likeliest token."""

NEGLIGIBLE = -22.0
"""Where ONE × exp is below 1, with room for rounding: ln(2^-30) is -20.8."""

WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
ROUNDS = 10
UNIFORM_BITS = 24

_MASK = (1 << 64) - 1


def philox(seed: int, position: int) -> int:
    """The first 64-bit word of Philox 4×64-10."""
    c0, c1, c2, c3 = position & _MASK, 0, 0, 0
    k0, k1 = seed & _MASK, 0
    for _ in range(ROUNDS):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _MASK, (p0 >> 64) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return c0


def penalise(logits: Array, ring: Array, pos: int, last_n: int, penalty: np.float32) -> Array:
    """A copy of `logits` with each distinct token of ring[pos + 1 - last_n : pos + 1] penalised.

    Ids that the vocabulary does not have are ignored.
    """
    out = logits.copy()
    if last_n <= 0 or not (penalty < 1 or penalty > 1):
        return out
    recent = np.unique(ring[max(0, pos + 1 - last_n) : pos + 1])
    recent = recent[(recent >= 0) & (recent < len(out))]
    chosen = logits[recent]
    with np.errstate(all="ignore"):
        out[recent] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return out


def penalise_output(
    row: Array, output: Array, presence: np.float32, frequency: np.float32
) -> Array:
    """A copy of `row` with what the tokens of `output` cost, in the order in which they came."""
    out = row.copy()
    output = output[(output >= 0) & (output < len(out))]
    with np.errstate(all="ignore"):
        np.subtract.at(out, output, frequency)
        out[np.unique(output)] -= presence
    return out


def finite(row: Array) -> Array:
    """Infinities and NaN to the ends of the range: NaN, like -infinity, to the smallest."""
    return np.clip(np.where(np.isnan(row), -LARGEST, row), -LARGEST, LARGEST).astype(np.float32)


def weights(row: Array, kept: Array, temperature: np.float32) -> NDArray[np.int64]:
    """Integers in proportion to softmax(row / temperature), 0 where not kept."""
    with np.errstate(all="ignore"):
        x = (row - row.max()) / temperature
    x = np.where(x > NEGLIGIBLE, x, np.float32(NEGLIGIBLE))
    return np.where(kept, exp(x) * np.float32(ONE), np.float32(0)).astype(np.int64)


def threshold(row: Array, top_k: int, top_p: np.float32, min_p: np.float32) -> np.float32:
    """The logit that kept tokens reach; at most the largest one."""
    limit = np.float32(-LARGEST)
    if 0 < top_k < len(row):
        limit = np.partition(row, -top_k)[-top_k]
    if top_p < 1:
        mass = weights(row, row >= limit, np.float32(1))
        order = np.argsort(-row, kind="stable")
        running = np.cumsum(mass[order])
        needed = max(1, math.ceil(float(top_p) * float(running[-1])))
        limit = max(limit, row[order[np.searchsorted(running, needed)]])
    if min_p > 0:
        limit = max(limit, row.max() + log(min(1.0, float(min_p))))
    return limit


def sample(
    logits: Array, ring: Array, pos: Array, control: Array, bias: Array | None = None
) -> Array:
    """The token that follows each of T, i32[T]; see the module's text for the rule.

    logits f32[T, vocabulary]; for S = T sequences, or T tokens of S = 1 from `pos` on:
    ring i32[S, capacity], pos i32[S], control[S], bias f32[S, vocabulary].
    """
    single = len(pos) == 1
    tokens = []
    for t, row in enumerate(logits):
        s, at = (0, int(pos[0]) + t) if single else (t, int(pos[t]))
        added = None if bias is None else bias[s]
        tokens.append(_sample_row(row, ring[s], at, control[s], added))
    return np.array(tokens, np.int32)


def _sample_row(logits: Array, ring: Array, at: int, c: Any, bias: Array | None) -> int:
    row = finite(penalise(logits, ring, at, int(c["repeat_last_n"]), c["repeat_penalty"]))
    output = ring[max(0, int(c["prompt"])) : at + 1]
    row = finite(penalise_output(row, output, c["presence_penalty"], c["frequency_penalty"]))
    if bias is not None and c["biased"]:
        row = finite(row + bias)
    if not c["temperature"] > 0:
        return int(row.argmax())
    limit = threshold(row, int(c["top_k"]), c["top_p"], c["min_p"])
    running = np.cumsum(weights(row, row >= limit, c["temperature"]))
    word = philox(int(c["seed"]), at)
    drawn = int(running[-1]) * (word >> (64 - UNIFORM_BITS)) >> UNIFORM_BITS
    return int(np.searchsorted(running, drawn, "right"))
