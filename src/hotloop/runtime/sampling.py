"""Sampling parameters: what a request says, checked, and written where a launch reads it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.types import CONTROL
from hotloop.util.errors import UsageError

MAX_STOP_IDS = CONTROL["stop_ids"].shape[0]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; `hotloop.ir.sample` has the rule.

    temperature      0 takes the most likely token; else at least 0, and finite
    seed             64 bits; with the position it decides every draw
    top_k            0 keeps all
    top_p            in (0, 1]; 1 keeps all
    min_p            in [0, 1]; 0 keeps all
    repeat_penalty   above 0; 1 is none
    repeat_last_n    how many of the last tokens are penalised; -1 is all
    presence_penalty, frequency_penalty
                     finite; subtracted from the logits of tokens that the output has; 0 is none
    stop_ids         tokens that end the generation, at most 32

    Raises `UsageError` where a value is out of its range.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    stop_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        self._check("temperature", 0 <= self.temperature < math.inf, "at least 0")
        self._check("seed", 0 <= self.seed < 2**64, "from 0 to 2^64 - 1")
        self._check("top_k", 0 <= self.top_k < 2**31, "at least 0")
        self._check("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        self._check("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        self._check("repeat_penalty", 0 < self.repeat_penalty < math.inf, "above 0")
        self._check("repeat_last_n", -1 <= self.repeat_last_n < 2**31, "at least -1")
        self._check("presence_penalty", math.isfinite(self.presence_penalty), "finite")
        self._check("frequency_penalty", math.isfinite(self.frequency_penalty), "finite")
        if len(self.stop_ids) > MAX_STOP_IDS:
            raise UsageError(f"{len(self.stop_ids)} stop tokens; at most {MAX_STOP_IDS} can be.")

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise UsageError(f"{name} is {getattr(self, name)!r}; it must be {wanted}.")

    def write(self, control: NDArray[np.generic], prompt: int = 0, biased: bool = False) -> None:
        """Fill the control block `control[1]`, for a launch that is about to start.

        `prompt` tokens of the sequence were not generated; `biased` says that it has a bias.
        """
        c = control[0]
        c["seed"] = self.seed
        c["temperature"] = self.temperature
        c["top_k"] = self.top_k
        c["top_p"] = self.top_p
        c["min_p"] = self.min_p
        c["repeat_penalty"] = self.repeat_penalty
        c["repeat_last_n"] = 2**31 - 1 if self.repeat_last_n < 0 else self.repeat_last_n
        c["presence_penalty"] = self.presence_penalty
        c["frequency_penalty"] = self.frequency_penalty
        c["prompt"] = prompt
        c["biased"] = biased
        c["stop_count"] = len(self.stop_ids)
        c["stop_ids"][: len(self.stop_ids)] = self.stop_ids
        c["cancel"] = 0
        c["finish"] = 0
        c["steps"] = 0
        c["drafted"] = 0
