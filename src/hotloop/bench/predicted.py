"""The cost model held to measurement: predicted and measured time of every rung on this host.

A point is a model, a number of threads, a position in the context, and how many sequences. In every
round each is measured next to what the cost model knows of the machine: a plain read of the
weights, the kernels of the ops by themselves (`backends.cpu.kernel_probe`), and what stages and
launches of a made-up decoder cost (`predict.reference`). The memory of a shared machine is not the
same from minute to minute, so what is compared lies close together. Nothing is fitted to a point:
everything is predicted.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hotloop.api import load
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.team import Team
from hotloop.compiler import SCHEDULES
from hotloop.frontends.decoder import Step
from hotloop.predict.cpu import Costs, op_cases, stream_cases
from hotloop.predict.kernels import KernelProbes
from hotloop.predict.models import open_shapes
from hotloop.predict.reference import Reference
from hotloop.predict.rung import Rung
from hotloop.util.errors import UsageError

SHORT, LONG = 16, 2048
BATCH = 4
#: Tokens of a measurement: enough for some 50 ms, and for a generation's launch to be shared.
LEAST_TOKENS, MOST_TOKENS = 2, 16
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
    """A rung at a point: milliseconds per step, which is a token for each sequence."""

    point: Point
    rung: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class _Station:
    """A point with its rungs; `read` reads the weights."""

    def __init__(self, point: Point, rungs: dict[str, Rung], read: ReadProbe) -> None:
        self.point = point
        self.read = read
        self.rungs = rungs
        self.samples: dict[str, list[float]] = {name: [] for name in rungs}
        self.reads: list[float] = []
        for rung in rungs.values():  # compiled, and its memory touched
            rung.decode(point.position, LEAST_TOKENS)
        least = min(rung.decode(point.position, LEAST_TOKENS) for rung in rungs.values())
        self.tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS / least)))
        middle = point.position + self.tokens // 2
        self.shapes = {name: rung.shape(middle) for name, rung in rungs.items()}

    def measure(self) -> None:
        """Each rung twice: cores that had nothing to do are slow at first, and so is memory.

        Then a read of the weights finds of them in the last cache what the next token would.
        """
        for name, rung in self.rungs.items():
            rung.decode(self.point.position, self.tokens)
            self.samples[name].append(rung.decode(self.point.position, self.tokens))
            self.reads.append(1e9 * self.read.once())

    @property
    def stream(self) -> float:
        return statistics.median(self.reads)

    @property
    def measured(self) -> dict[str, float]:
        return {rung: statistics.median(values) for rung, values in self.samples.items()}

    def launches(self, rung: str) -> float:
        return 1 / self.tokens if rung == "tokens" else 1.0


@dataclass
class _Team:
    """All points of a model on a number of threads."""

    model: str
    threads: int
    stations: list[_Station]
    probes: KernelProbes
    reference: Reference

    def measure(self) -> None:
        self.probes.measure()
        for station in self.stations:
            station.measure()


def hold(
    names: Sequence[str],
    threads: Sequence[int],
    rounds: int = 7,
    progress: Progress = lambda done, total, what: None,
) -> list[Outcome]:
    """Measure all rungs of all points in turn, `rounds` times, and predict them."""
    if not names or len(set(threads)) != len(threads):
        raise UsageError("give at least one model, and each number of threads once.")
    with ExitStack() as stack:  # each team with its reference, which all models share
        crews = {count: _crew(count, stack) for count in threads}
        teams = [_team(name, *crews[count], stack) for name in names for count in threads]
        for done in range(rounds):
            for i, team in enumerate(teams):
                progress(done * len(teams) + i, rounds * len(teams), "measure")
                if team.model == teams[0].model:
                    team.reference.measure()
                team.measure()
        return list(_outcomes(teams))


def _crew(count: int, stack: ExitStack) -> tuple[Team, Reference]:
    team = Team(count)
    stack.callback(team.close)
    reference = Reference(team)
    stack.callback(reference.close)
    return team, reference


def _team(name: str, team: Team, reference: Reference, stack: ExitStack) -> _Team:
    count = team.threads
    context = min(LONG + 2 * MOST_TOKENS, open_shapes(name).config.context)
    model = stack.enter_context(load(name, threads=count, context=context))
    step = Step(context=model.context, activations=model.activations, kv_cache=model.kv_cache)
    memory = model.weights.arena
    read = ReadProbe(len(memory.data), team, memory)
    stations = []
    for batch in (1, BATCH):
        rungs = {
            rung: Rung(model.decoder, step, rung, model.weights, team, batch) for rung in SCHEDULES
        }
        for rung in rungs.values():
            stack.callback(rung.close)
        for position in (SHORT, context - 2 * MOST_TOKENS) if batch == 1 else (SHORT,):
            stations.append(_Station(Point(model.path.name, count, position, batch), rungs, read))
    shapes = [found for station in stations for found in station.shapes.values()]
    probes = KernelProbes(op_cases(shapes), stream_cases(shapes), memory, team, read)
    return _Team(model.path.name, count, stations, probes, reference)


def _outcomes(teams: Sequence[_Team]) -> Iterator[Outcome]:
    for team in teams:
        boundaries, probes = team.reference.boundaries, team.probes
        for station in team.stations:
            costs = Costs(
                stream=station.stream,
                stage=boundaries.stage_sync,
                launches=boundaries.launches,
                threads=team.threads,
                kernels=probes.kernels.faster(station.stream / probes.stream),
            )
            for rung, seconds in station.measured.items():
                predicted = station.shapes[rung].seconds(costs, station.launches(rung))
                yield Outcome(station.point, rung, 1e3 * seconds, 1e3 * predicted)


def errors(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Median and largest error."""
    found = [abs(outcome.error) for outcome in outcomes]
    return statistics.median(found), max(found)
