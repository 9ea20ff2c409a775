"""Engines against each other on one model: interleaved rounds, next to the machine's own speed.

One workload after the other, and within it rounds: each asks every engine once, starting with
another one each time, and measures once what would limit it: a plain read of memory, or, for a
prompt, multiplying and adding in registers. So what drifts (other tenants, clocks) drifts
for all, and an engine keeps a long context in its cache for all rounds of the workload.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.peak import PeakProbe
from hotloop.backends.cpu.team import Team
from hotloop.bench.prompts import sample_ids
from hotloop.bench.result import Samples
from process import EngineError, EngineProcess, MissingError, Start

#: hotloop first; the second is the yardstick of the ratios.
ENGINES = ("hotloop", "llama_cpp", "openvino", "onnxruntime", "ctranslate2")
#: Ids of prompts are below this, which every vocabulary that is compared has.
SMALLEST_VOCABULARY = 256
#: Readings of the machine's own speed in a round, 50 ms each.
READINGS = 3
#: Before an engine's turn: the threads of the one before spin on for a while (OpenMP's for 0.2 s).
SETTLE_SECONDS = 0.4

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Workload:
    """Decode `tokens` tokens after a prompt of `prompt`; where there are none, read the prompt."""

    name: str
    prompt: int
    tokens: int = 0

    @property
    def context(self) -> int:
        return self.prompt + self.tokens

    @property
    def unit(self) -> str:
        """Of what limits it: 10^9 bytes, or multiply-adds, per second."""
        return "GB/s" if self.tokens else "GMAC/s"

    def run(self, engine: EngineProcess) -> float:
        """Tokens per second."""
        ids = sample_ids(SMALLEST_VOCABULARY, self.prompt)
        if self.tokens:
            return self.tokens / engine.decode(ids, self.tokens)
        return self.prompt / engine.prompt(ids)


@dataclass(frozen=True)
class Row:
    """One engine on one workload."""

    workload: Workload
    threads: int
    engine: str
    version: str
    tok_s: Samples


@dataclass(frozen=True)
class Comparison:
    """`weight_bytes` and `kv_bytes` (for each position before it) are what a token has to read.

    `macs` are the multiply-adds that a token of a prompt needs of matrix products.
    """

    model: str
    file_bytes: int
    weight_bytes: int
    kv_bytes: int
    macs: int
    rows: tuple[Row, ...]
    limits: Mapping[tuple[Workload, int], Samples]
    """By workload and threads, in 10^9 per second: a plain read of as many bytes as one of its
    tokens reads; multiply-adds, where it is a prompt."""
    absent: Mapping[str, str]
    """Engines that were not measured, and why."""

    def ratio(self, row: Row) -> float | None:
        """How fast `row` is, next to the yardstick's with as many threads."""
        wanted = (row.workload, row.threads, ENGINES[1])
        for other in self.rows:
            if (other.workload, other.threads, other.engine) == wanted:
                return row.tok_s.median / other.tok_s.median
        return None

    def token_bytes(self, workload: Workload) -> int:
        """What a token in the middle of the workload has to read."""
        return token_bytes(self.weight_bytes, self.kv_bytes, workload)

    def rate(self, row: Row) -> float:
        """What it does, in the unit of its limit."""
        each = self.token_bytes(row.workload) if row.workload.tokens else self.macs
        return row.tok_s.median * each / 1e9

    def limit(self, row: Row) -> float:
        return self.limits[row.workload, row.threads].median

    def share(self, row: Row) -> float:
        """Of the limit."""
        return self.rate(row) / self.limit(row)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "file_bytes": self.file_bytes,
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_position": self.kv_bytes,
            "macs_per_prompt_token": self.macs,
            "absent": dict(self.absent),
            "rows": [
                {
                    "workload": row.workload.name,
                    "threads": row.threads,
                    "engine": row.engine,
                    "version": row.version,
                    "tok_s": row.tok_s.median,
                    "tok_s_range": [row.tok_s.low, row.tok_s.high],
                    "ratio": self.ratio(row),
                    "unit": row.workload.unit,
                    "rate": self.rate(row),
                    "limit": self.limit(row),
                    "share": self.share(row),
                }
                for row in self.rows
            ],
        }


def token_bytes(weight_bytes: int, kv_bytes: int, workload: Workload) -> int:
    return weight_bytes + kv_bytes * (workload.prompt + workload.tokens // 2)


def compare(
    model: Path,
    workloads: Sequence[Workload],
    threads: Sequence[int],
    rounds: int,
    start: Start,
    progress: Progress = lambda what: None,
    names: Sequence[str] = ENGINES,
) -> Comparison:
    """Measure the engines `names`, hotloop among them, on `model`.

    One that fails is left out from there on, with its reason.

    Raises `EngineError` where it is hotloop that fails: it also says how much a token reads.
    """
    rows: list[Row] = []
    limits: dict[tuple[Workload, int], Samples] = {}
    absent: dict[str, str] = {}
    facts: dict[str, Any] = {}
    context = max(workload.context for workload in workloads)
    for count in threads:
        engines: dict[str, EngineProcess] = {}
        team = Team(count)
        try:
            for name in names:
                progress(f"{model.name}, {count} threads: load in {name}")
                try:
                    engines[name] = start(name, model, count, context, {})
                except (EngineError, MissingError) as error:
                    absent[name] = str(error)
            if ENGINES[0] not in engines:
                raise EngineError(absent[ENGINES[0]])
            facts = engines[ENGINES[0]].facts
            for workload in workloads:
                progress(f"{model.name}, {count} threads: {workload.name}")
                nbytes = token_bytes(facts["weight_bytes"], facts["kv_bytes"], workload)
                probe = ReadProbe(nbytes, team).gbps if workload.tokens else PeakProbe(team).gmacs
                samples, limit = _rounds(workload, engines, rounds, probe, absent)
                limits[workload, count] = limit
                rows += [
                    Row(workload, count, name, engines[name].version, values)
                    for name, values in samples.items()
                ]
        finally:
            team.close()
            for engine in engines.values():
                engine.close()
    return Comparison(
        model.name,
        model.stat().st_size,
        facts["weight_bytes"],
        facts["kv_bytes"],
        facts["macs"],
        tuple(rows),
        limits,
        absent,
    )


def _rounds(
    workload: Workload,
    engines: Mapping[str, EngineProcess],
    rounds: int,
    probe: Callable[[], float],
    absent: dict[str, str],
) -> tuple[dict[str, Samples], Samples]:
    """Tokens per second of each engine and the machine's own speed; one more round warms up."""
    names = [name for name in engines if name not in absent]
    rates: dict[str, list[float]] = {name: [] for name in names}
    limit: list[float] = []
    for turn in range(rounds + 1):
        for at in range(len(names)):
            name = names[(at + turn) % len(names)]
            if name in absent:
                continue
            time.sleep(SETTLE_SECONDS)
            try:
                rates[name].append(workload.run(engines[name]))
            except EngineError as error:
                if name == ENGINES[0]:
                    raise
                absent[name] = str(error)
                del rates[name]
        limit.append(statistics.median(probe() for _ in range(READINGS)))
    return {name: Samples(tuple(r[1:])) for name, r in rates.items()}, Samples(tuple(limit[1:]))
