"""The cost model held to measurement: predicted and measured time of every rung on this host.

A point is a model, a number of threads, a position in the context, and how many sequences. On the
first model, with one sequence at a short context, the costs are fitted: one point for each number
of threads, two in all. Everything else is predicted from those and from what a plain read of as
many bytes reaches in the same rounds, since the memory of a shared machine is not the same from
minute to minute.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hotloop.api import Model, load
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.team import Team
from hotloop.backends.dataflow.work import Workload
from hotloop.bench.prompts import sample_ids
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.frontends.decoder import Step
from hotloop.ir.program import Program
from hotloop.machine.host import host
from hotloop.predict.cpu import fit, shape
from hotloop.runtime.executor import Row
from hotloop.runtime.sampling import Sampling
from hotloop.util.errors import UsageError

SHORT, LONG = 16, 512
BATCH = 4
#: Tokens of a measurement: enough for some 50 ms, and for a generation's launch to be shared.
LEAST_TOKENS, MOST_TOKENS = 4, 16
SECONDS = 0.05

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Point:
    model: str
    threads: int
    position: int
    batch: int = 1

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.threads} threads, position {self.position:,}, batch {self.batch}"
        )


@dataclass(frozen=True)
class Outcome:
    """A rung at a point: milliseconds per step, which is a token for each sequence.

    Of `fitted` points nothing was predicted.
    """

    point: Point
    rung: str
    measured: float
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


#: Decodes so many tokens, of each sequence; the seconds that it took.
Decode = Callable[[int], float]


class _Station:
    """A point: how each rung decodes there, its program, and the read that goes along."""

    def __init__(
        self, point: Point, rungs: dict[str, tuple[Decode, Program]], probe: ReadProbe
    ) -> None:
        self.point = point
        self.probe = probe
        self.rungs = rungs
        self.samples: dict[str, list[float]] = {rung: [] for rung in rungs}
        self.reads: list[float] = []
        first = min(decode(LEAST_TOKENS) for decode, _ in rungs.values()) / LEAST_TOKENS
        self.tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS / first)))
        middle = Workload(point.position + self.tokens // 2)
        self.shapes = {rung: shape(program, middle) for rung, (_, program) in rungs.items()}

    def measure(self) -> None:
        self.reads.append(self.probe.gbps() * 1e9)
        for rung, (decode, _) in self.rungs.items():
            self.samples[rung].append(decode(self.tokens) / self.tokens)

    @property
    def measured(self) -> dict[str, float]:
        return {rung: statistics.median(values) for rung, values in self.samples.items()}

    @property
    def read(self) -> float:
        return statistics.median(self.reads)

    def launches(self, rung: str) -> float:
        return 1 / self.tokens if rung == "tokens" else 1.0


def hold(
    names: Sequence[str],
    threads: Sequence[int],
    rounds: int = 7,
    progress: Progress = lambda done, total, what: None,
) -> list[Outcome]:
    """Measure all rungs of all points in turn, `rounds` times, and predict them."""
    if not names or len(set(threads)) != len(threads):
        raise UsageError("give at least one model, and each number of threads once.")
    with ExitStack() as stack:
        stations = list(_stations(names, threads, stack))
        for done in range(rounds):
            for i, station in enumerate(stations):
                progress(done * len(stations) + i, rounds * len(stations), "measure")
                station.measure()
        return list(_outcomes(stations))


def _stations(names: Sequence[str], threads: Sequence[int], stack: ExitStack) -> Iterator[_Station]:
    for name in names:
        for count in threads:
            base = stack.enter_context(load(name, threads=count, context=LONG + 2 * MOST_TOKENS))
            team = Team(count)
            stack.callback(team.close)
            nbytes = shape(base.program, Workload(SHORT)).nbytes
            probe = ReadProbe(int(nbytes), team)
            for position in (SHORT, LONG):
                # Models of its own: each keeps its prompt in its cache from round to round.
                rungs = {rung: _alone(base.with_schedule(rung), position) for rung in SCHEDULES}
                yield _Station(Point(base.path.name, count, position), rungs, probe)
            if name == names[0]:
                rungs = {rung: _together(base.with_schedule(rung), stack) for rung in SCHEDULES}
                yield _Station(Point(base.path.name, count, SHORT, BATCH), rungs, probe)


def _alone(model: Model, position: int) -> tuple[Decode, Program]:
    """Decode one sequence from a position on."""
    ids = sample_ids(model.config.vocab, position)
    return lambda tokens: model.time_decode(ids, tokens), model.program


def _together(model: Model, stack: ExitStack) -> tuple[Decode, Program]:
    """Decode `BATCH` sequences from the short position on; what their caches hold is no matter."""
    executor = model.batch(BATCH)
    stack.callback(executor.close)
    ids = sample_ids(model.config.vocab, SHORT)
    each = executor.pages // BATCH
    rows = [
        Row(ids, len(ids), model.context, list(range(at * each, (at + 1) * each)), Sampling())
        for at in range(BATCH)
    ]

    def decode(tokens: int) -> float:
        started = time.perf_counter()
        executor.decode(rows, tokens, lambda new: True)
        return time.perf_counter() - started

    step = Step(BATCH, model.context, model.activations, batch=True)
    compiled = compile_graph(model.decoder.graph(step), host(model.threads), model.schedule)
    return decode, compiled.program


def _outcomes(stations: Sequence[_Station]) -> Iterator[Outcome]:
    first = stations[0].point.model
    reference = {
        station.point.threads: station
        for station in stations
        if station.point == Point(first, station.point.threads, SHORT)
    }
    costs = {
        threads: fit(station.measured, station.shapes) for threads, station in reference.items()
    }
    for station in stations:
        own = reference[station.point.threads]
        fitted = costs[station.point.threads]
        scaled = replace(fitted, stream=fitted.stream * station.read / own.read)
        for rung, seconds in station.measured.items():
            predicted = station.shapes[rung].seconds(scaled, station.launches(rung))
            yield Outcome(station.point, rung, 1e3 * seconds, 1e3 * predicted, station is own)


def errors(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Median and largest error of what was predicted."""
    found = [abs(outcome.error) for outcome in outcomes if not outcome.fitted]
    return (statistics.median(found), max(found)) if found else (0.0, 0.0)
