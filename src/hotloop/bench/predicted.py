"""The cost model held to measurement: predicted and measured time of every rung on this host.

A point is a model, a number of threads and a position in the context. On the first model, at a
short context, the costs are fitted: one point for each number of threads, two in all. Everything
else is predicted from those and from what a plain read of as many bytes reaches in the same rounds,
since the memory of a shared machine is not the same from minute to minute.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hotloop.api import Model, load
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.team import Team
from hotloop.backends.dataflow.work import Workload
from hotloop.bench.prompts import sample_ids
from hotloop.compiler import SCHEDULES
from hotloop.predict.cpu import fit, shape
from hotloop.util.errors import UsageError

SHORT, LONG = 16, 512
#: Tokens of a measurement: enough for some 50 ms, and for a generation's launch to be shared.
LEAST_TOKENS, MOST_TOKENS = 4, 16
SECONDS = 0.05

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Point:
    model: str
    threads: int
    position: int

    def __str__(self) -> str:
        return f"{self.model}, {self.threads} threads, position {self.position:,}"


@dataclass(frozen=True)
class Outcome:
    """A rung at a point: milliseconds per token. Of `fitted` points nothing was predicted."""

    point: Point
    rung: str
    measured: float
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class _Station:
    """A point with its models, one for each rung, and the read that goes with it."""

    def __init__(self, point: Point, models: dict[str, Model], probe: ReadProbe) -> None:
        self.point = point
        self.models = models
        self.probe = probe
        self.ids = sample_ids(next(iter(models.values())).config.vocab, point.position)
        self.samples: dict[str, list[float]] = {rung: [] for rung in models}
        self.reads: list[float] = []
        self.tokens = LEAST_TOKENS
        first = min(self._decode(model) for model in models.values())
        self.tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS / first)))
        middle = point.position + self.tokens // 2
        load_ = Workload(middle)
        self.shapes = {rung: shape(model.program, load_) for rung, model in models.items()}

    def _decode(self, model: Model) -> float:
        return model.time_decode(self.ids, self.tokens) / self.tokens

    def measure(self) -> None:
        self.reads.append(self.probe.gbps() * 1e9)
        for rung, model in self.models.items():
            self.samples[rung].append(self._decode(model))

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
                models = {rung: base.with_schedule(rung) for rung in SCHEDULES}
                yield _Station(Point(base.path.name, count, position), models, probe)


def _outcomes(stations: Sequence[_Station]) -> Iterator[Outcome]:
    first = stations[0].point.model
    reference = {
        station.point.threads: station
        for station in stations
        if station.point.model == first and station.point.position == SHORT
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
