"""Pooling: one vector for a text, from the hidden states of its tokens after the final norm."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pooling = Literal["mean", "last"]


class Pooled:
    """The mean of a prompt's hidden states, or the last one, with length 1.

    A `hotloop.runtime.sequence.Reader`. Sums are of float64, in the order of positions.
    """

    head = False

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._sum: NDArray[np.float64] = np.zeros(0)

    def read(self, values: NDArray[np.float32]) -> None:
        if self._pooling == "last" or not self._sum.size:
            self._sum = np.zeros(values.shape[1])
        for row in values[-1:] if self._pooling == "last" else values:
            self._sum += row

    @property
    def vector(self) -> NDArray[np.float32]:
        """float32 [width]; zeros stay zeros."""
        length = float(np.sqrt(np.square(self._sum).sum()))
        return (self._sum / (length or 1.0)).astype(np.float32)
