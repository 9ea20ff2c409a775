"""Logprobs: how likely tokens were, of an output and of a prompt."""

import numpy as np
from numpy.typing import NDArray

from hotloop.runtime.sequence import TopLogprobs


class PromptLogprobs:
    """Of each token of a prompt but the first, after those before it; `count` likeliest of each.

    A `hotloop.runtime.sequence.Reader`.
    """

    head = True

    def __init__(self, prompt: list[int], count: int) -> None:
        self.found: list[TopLogprobs] = []
        self._following = prompt[1:]
        self._count = count

    def read(self, values: NDArray[np.float32]) -> None:
        following = self._following[len(self.found) :]
        self.found += [
            top_logprobs(logits, token, self._count)
            for logits, token in zip(values, following, strict=False)  # nothing follows the last
        ]


def top_logprobs(logits: NDArray[np.float32], chosen: int, count: int) -> TopLogprobs:
    """Of logits [vocab]: the logarithms of softmax, of `chosen` and of the `count` likeliest.

    Equal ones are in the order of ids.
    """
    top = logits.max()
    # The sum is float64's; each term's error is float32's, far below what a logit means.
    log_total = float(top) + np.log(np.exp(logits - top).sum(dtype=np.float64))
    count = min(count, len(logits))
    best = _likeliest(logits, count) if count else np.zeros(0, np.int64)
    logs = logits[best].astype(np.float64) - log_total
    chosen_log = float(logits[chosen] - log_total)
    return TopLogprobs(chosen_log, tuple(best.tolist()), tuple(logs.tolist()))


def _likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    limit = np.partition(logits, -count)[-count]
    candidates = np.flatnonzero(logits >= limit)
    return candidates[np.argsort(-logits[candidates], kind="stable")][:count]
