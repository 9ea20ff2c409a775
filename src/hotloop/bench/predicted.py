"""The cost model held to measurement: predicted and measured time of every rung on this host.

A point is a model, a number of threads, a position in the context, and how many sequences. On the
first model, with one sequence at a short context, the costs are fitted: one point for each number
of threads, two in all. Everything else is predicted from those and from what a plain read of as
many bytes reaches in the same rounds, since the memory of a shared machine is not the same from
minute to minute.
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
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.frontends.decoder import Step
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


class _Station:
    """A point with its rungs, and the read that goes along."""

    def __init__(self, point: Point, rungs: dict[str, "_Rung"], probe: ReadProbe) -> None:
        self.point = point
        self.probe = probe
        self.rungs = rungs
        self.samples: dict[str, list[float]] = {name: [] for name in rungs}
        self.reads: list[float] = []
        first = min(rung.decode(point.position, LEAST_TOKENS) for rung in rungs.values())
        self.tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS / first)))
        middle = Workload(point.position + self.tokens // 2)
        self.shapes = {name: shape(rung.program, middle) for name, rung in rungs.items()}

    def measure(self) -> None:
        self.reads.append(self.probe.gbps() * 1e9)
        for name, rung in self.rungs.items():
            self.samples[name].append(rung.decode(self.point.position, self.tokens))

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
            model = stack.enter_context(load(name, threads=count, context=LONG + 2 * MOST_TOKENS))
            team = Team(count)
            stack.callback(team.close)
            nbytes = shape(model.program, Workload(SHORT)).nbytes
            probe = ReadProbe(int(nbytes), team)
            for batch in (1, BATCH) if name == names[0] else (1,):
                rungs = {rung: _Rung(model, batch, rung) for rung in SCHEDULES}
                for rung in rungs.values():
                    stack.callback(rung.executor.close)
                for position in (SHORT, LONG) if batch == 1 else (SHORT,):
                    yield _Station(Point(model.path.name, count, position, batch), rungs, probe)


class _Rung:
    """A rung for so many sequences: it decodes from any position on, without a prompt.

    What the cache holds there makes no difference to the time.
    """

    def __init__(self, model: Model, batch: int, rung: str) -> None:
        self.executor = model.batch(batch, schedule=rung)
        self.batch = batch
        self.limit = model.context
        self.vocab = model.config.vocab
        step = Step(batch, model.context, model.activations, batch=True, kv_cache=model.kv_cache)
        graph = model.decoder.graph(step)
        self.program = compile_graph(graph, host(model.threads), rung).program

    def decode(self, position: int, tokens: int) -> float:
        """Seconds that a step takes, of `tokens` steps from `position` on."""
        ids = sample_ids(self.vocab, position)
        each = self.executor.pages // self.batch
        tables = [list(range(at * each, (at + 1) * each)) for at in range(self.batch)]
        rows = [Row(ids, len(ids), self.limit, table, Sampling()) for table in tables]
        return self.executor.time_decode(rows, tokens) / tokens


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
