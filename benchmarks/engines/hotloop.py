"""hotloop itself, on the schedule that users get: a launch per generation."""

from typing import Any

import hotloop
from hotloop.report.counts import multiply_adds, traffic

REQUIRES = "hotloop"


class Engine:
    def __init__(self, model: str, threads: int, context: int) -> None:
        self._model = hotloop.load(model, threads=threads, context=context)
        self.version = f"hotloop {hotloop.__version__}"

    def decode(self, ids: list[int], n: int) -> float:
        return self._model.time_decode(ids, n)

    def prompt(self, ids: list[int]) -> float:
        return self._model.time_prompt(ids)

    def facts(self) -> dict[str, Any]:
        reads = traffic(self._model.program)
        return {
            "weight_bytes": reads.weight_bytes,
            "kv_bytes": reads.kv_per_position,
            "macs": multiply_adds(self._model.graph),
        }
