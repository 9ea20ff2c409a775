"""The cost model held to measurement: predicted and measured time of every rung on this host.

A point is a model, a number of threads, a position in the context, and how many sequences. In every
round each is measured next to what the cost model knows of the machine: a plain read of the
weights, and the kernels of the ops by themselves (`backends.cpu.kernel_probe`). The memory of a
shared machine is not the same from minute to minute, so what is compared lies close together.

What no probe says, what a stage and a launch cost, is fitted on the first model with one sequence
at a short context: one point for each number of threads, two where they are one and all. Everything
else is predicted.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hotloop.api import Model, load
from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.kernel_probe import OpProbe, StreamCase, StreamProbe
from hotloop.backends.cpu.team import Team
from hotloop.backends.dataflow.work import Workload
from hotloop.bench.prompts import sample_ids
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.frontends.decoder import Step
from hotloop.machine.host import host
from hotloop.predict.cpu import Costs, Kernels, Shape, fit, op_cases, shape, stream_cases
from hotloop.predict.models import open_shapes
from hotloop.runtime.executor import Row
from hotloop.runtime.sampling import Sampling
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
    """A point with its rungs; `read` reads the weights."""

    def __init__(self, point: Point, rungs: dict[str, "_Rung"], read: ReadProbe) -> None:
        self.point = point
        self.read = read
        self.rungs = rungs
        self.samples: dict[str, list[float]] = {name: [] for name in rungs}
        self.reads: list[float] = []
        first = min(rung.decode(point.position, LEAST_TOKENS) for rung in rungs.values())
        self.tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS / first)))
        middle = Workload(point.position + self.tokens // 2)
        self.shapes = {name: shape(rung.program, middle) for name, rung in rungs.items()}

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


class _Probes:
    """What the kernels of a model's points do by themselves on a team, over the weights' memory.

    That it holds the weights of other ops makes no difference: their speed does not depend on what
    they compute with.
    """

    def __init__(self, shapes: Sequence[Shape], memory: Arena, read: ReadProbe) -> None:
        self.read = read
        self.ops = op_cases(shapes)
        self.op_probe = OpProbe(self.ops)
        self.streams = {case: StreamProbe(case, memory, read.team) for case in stream_cases(shapes)}
        self.rows: list[list[float]] = []
        self.rates: dict[StreamCase, list[float]] = {case: [] for case in self.streams}
        self.reads: list[float] = []

    def measure(self) -> None:
        self.rows.append(self.op_probe.seconds())
        for case, probe in self.streams.items():
            self.rates[case].append(probe.rate())
            self.reads.append(1e9 * self.read.once())

    @property
    def stream(self) -> float:
        return statistics.median(self.reads)

    @property
    def kernels(self) -> Kernels:
        rows = map(statistics.median, zip(*self.rows, strict=True))
        rates = {case: statistics.median(self.rates[case]) for case in self.streams}
        return Kernels(dict(zip(self.ops, rows, strict=True)), rates)


@dataclass
class _Team:
    """All points of a model on a number of threads."""

    model: str
    threads: int
    stations: list[_Station]
    probes: _Probes

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
    with ExitStack() as stack:
        teams = [_team(name, count, stack, first=name == names[0])
                 for name in names for count in threads]  # fmt: skip
        for done in range(rounds):
            for i, team in enumerate(teams):
                progress(done * len(teams) + i, rounds * len(teams), "measure")
                team.measure()
        return list(_outcomes(teams))


def _team(name: str, count: int, stack: ExitStack, *, first: bool) -> _Team:
    context = min(LONG + 2 * MOST_TOKENS, open_shapes(name).config.context)
    model = stack.enter_context(load(name, threads=count, context=context))
    team = Team(count)
    stack.callback(team.close)
    memory = model.weights.arena
    read = ReadProbe(len(memory.data), team, memory)
    stations = []
    for batch in (1, BATCH):
        rungs = {rung: _Rung(model, batch, rung) for rung in SCHEDULES}
        for rung in rungs.values():
            stack.callback(rung.executor.close)
        for position in (SHORT, context - 2 * MOST_TOKENS) if batch == 1 else (SHORT,):
            stations.append(_Station(Point(model.path.name, count, position, batch), rungs, read))
    shapes = [found for station in stations for found in station.shapes.values()]
    return _Team(model.path.name, count, stations, _Probes(shapes, memory, read))


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


def _outcomes(teams: Sequence[_Team]) -> Iterator[Outcome]:
    first = teams[0].model
    fitted: dict[int, Costs] = {}
    for team in teams:
        own = team.stations[0]
        if team.model == first:
            kernels = team.probes.kernels
            kernels = kernels.faster(own.stream / team.probes.stream)
            fitted[team.threads] = fit(own.measured, own.shapes, own.stream, team.threads, kernels)
        for station in team.stations:
            kernels = team.probes.kernels.faster(station.stream / team.probes.stream)
            costs = replace(fitted[team.threads], stream=station.stream, kernels=kernels)
            for rung, seconds in station.measured.items():
                predicted = station.shapes[rung].seconds(costs, station.launches(rung))
                is_own = team.model == first and station is own
                yield Outcome(station.point, rung, 1e3 * seconds, 1e3 * predicted, is_own)


def errors(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Median and largest error of what was predicted."""
    found = [abs(outcome.error) for outcome in outcomes if not outcome.fitted]
    return (statistics.median(found), max(found)) if found else (0.0, 0.0)
