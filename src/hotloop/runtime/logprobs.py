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
    wide = logits.astype(np.float64)
    top = wide.max()
    logs = wide - (top + np.log(np.exp(wide - top).sum()))
    count = min(count, len(logs))
    if count == 0:
        return TopLogprobs(float(logs[chosen]), (), ())
    limit = np.partition(logs, -count)[-count]
    candidates = np.flatnonzero(logs >= limit)
    best = candidates[np.argsort(-logs[candidates], kind="stable")][:count]
    return TopLogprobs(float(logs[chosen]), tuple(best.tolist()), tuple(logs[best].tolist()))
