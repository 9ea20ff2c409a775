"""CTranslate2 with int8 weights, from `export_for_peers.py`."""

import json
import time
from typing import Any

import ctranslate2

from export_for_peers import exported

REQUIRES = "ctranslate2"


class Engine:
    def __init__(self, model: str, threads: int, context: int) -> None:
        folder = exported(model, "ct2")
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
        )
        self._tokens = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        self.version = f"CTranslate2 ({ctranslate2.__version__}), int8"

    def decode(self, ids: list[int], n: int) -> float:
        times = self._step_times(ids, n + 1)
        return times[-1] - times[0]

    def prompt(self, ids: list[int]) -> float:
        started = time.perf_counter()
        return self._step_times(ids, 1)[0] - started

    def facts(self) -> dict[str, Any]:
        return {}

    def _step_times(self, ids: list[int], n: int) -> list[float]:
        """When each of `n` tokens after `ids` was there."""
        times: list[float] = []

        def note(step: Any) -> bool:
            times.append(time.perf_counter())
            return False

        self._generator.generate_batch(
            [[self._tokens[id] for id in ids]],
            max_length=n,
            min_length=n,
            include_prompt_in_result=False,
            callback=note,
        )
        return times
