"""The meaning of sampling: from a row of logits to a token, by thresholds.

Every filter keeps the tokens whose logit reaches a threshold, so no sort is needed and ties are
kept together:

    penalty   logits of tokens among the last `repeat_last_n` are divided by `repeat_penalty` where
              positive and multiplied where negative (Keskar et al., 2019, arXiv 1909.05858)
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
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox(seed: int, position: int) -> int:
    """The first 64-bit word of Philox 4×64-10."""
    c0, c1, c2, c3 = position & _MASK, 0, 0, 0
    k0, k1 = seed & _MASK, 0
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _MASK, (p0 >> 64) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0


def uniform(seed: int, position: int) -> np.float32:
    """In [0, 1), a multiple of 2^-24."""
    return np.float32((philox(seed, position) >> 40) / (1 << 24))


def penalise(logits: Array, ring: Array, pos: int, last_n: int, penalty: float) -> Array:
    """A copy of `logits` with each distinct token of ring[pos + 1 - last_n : pos + 1] penalised."""
    out = logits.copy()
    if penalty == 1 or last_n <= 0:
        return out
    for token in set(ring[max(0, pos + 1 - last_n) : pos + 1].tolist()):
        if 0 <= token < len(out):
            value = logits[token]
            out[token] = value / np.float32(penalty) if value > 0 else value * np.float32(penalty)
    return out


def sample(logits: Array, ring: Array, pos: Array, control: Array) -> Array:
    """The token for position pos + 1, as i32[1]; see the module's text for the rule."""
    c, at = control[0], int(pos[0])
    row = penalise(logits[0], ring, at, int(c["repeat_last_n"]), float(c["repeat_penalty"]))
    if c["temperature"] <= 0:
        return np.array([row.argmax()], np.int32)
    top = row.max()
    kept = np.ones(len(row), bool)
    if 0 < c["top_k"] < len(row):
        kept = row >= np.partition(row, -int(c["top_k"]))[-int(c["top_k"])]
    if c["top_p"] < 1:
        mass = np.where(kept, np.exp((row - top).astype(np.float32)), np.float32(0))
        order = np.argsort(-row, kind="stable")
        running = np.cumsum(mass[order], dtype=np.float64)
        last = int(np.searchsorted(running, float(c["top_p"]) * running[-1]))
        kept &= row >= row[order[min(last, len(row) - 1)]]
    if c["min_p"] > 0:
        kept &= row >= top + np.log(c["min_p"])
    weights = np.where(kept, np.exp((row - top) / c["temperature"]), np.float32(0))
    running = np.cumsum(weights, dtype=np.float64)
    drawn = int(np.searchsorted(running, float(uniform(int(c["seed"]), at)) * running[-1], "right"))
    return np.array([min(drawn, int(np.flatnonzero(kept)[-1]))], np.int32)
