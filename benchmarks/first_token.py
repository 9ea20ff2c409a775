"""What starting costs: from a new process to its first token, and the most memory it took.

The model file is in the system's page cache. hotloop starts twice: with an empty cache of machine
code, and with what the first start left there.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison import ENGINES, SMALLEST_VOCABULARY
from hotloop.bench.prompts import sample_ids
from hotloop.util import settings
from process import EngineError, MissingError, Start

PROMPT_TOKENS = 20
CONTEXT = 1024


@dataclass(frozen=True)
class FirstToken:
    """`peak_bytes` counts every resident page, those of the mapped model file included."""

    model: str
    engine: str
    threads: int
    state: str
    seconds: float
    peak_bytes: int
    file_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "peak_per_file": self.peak_bytes / self.file_bytes}


def first_tokens(
    model: Path, threads: int, start: Start, names: Sequence[str] = ENGINES
) -> list[FirstToken]:
    """One start of each of the engines `names` that is installed, two of hotloop."""
    file_bytes = len(model.read_bytes())  # and so the file is in the page cache
    results = []
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as cache:
        environment = {settings.CACHE.name: cache, settings.CODE_CACHE.name: "1"}
        for engine in (name for name in ENGINES if name in (ENGINES[0], *names)):
            for state in ("cold", "code cached") if engine == ENGINES[0] else ("",):
                started = time.perf_counter()
                try:
                    process = start(engine, model, threads, CONTEXT, environment)
                except (EngineError, MissingError):
                    continue  # the comparison says why
                with process:
                    process.decode(sample_ids(SMALLEST_VOCABULARY, PROMPT_TOKENS), 1)
                    seconds, peak = time.perf_counter() - started, process.peak_bytes()
                results.append(
                    FirstToken(model.name, engine, threads, state, seconds, peak, file_bytes)
                )
    return results
