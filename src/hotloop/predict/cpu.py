"""The cost model of a CPU: a step's time from the stages and launches of its program.

    stage     its bytes, weights and cache, at the rate of the stream; then every thread waits for
              the last one's last tile, which costs about the same for every stage
    launch    waking parked threads and joining them: more after a long launch than after a short
              one, since a core that has slept for long wakes slowly

Nothing here knows which rung it looks at: rungs differ in how many stages and launches they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.backends.dataflow.work import Workload, kernel_work
from hotloop.ir.program import Item, Program
from hotloop.machine.hardware import Hardware
from hotloop.report.counts import executed


@dataclass(frozen=True)
class Costs:
    """Of a team of so many threads: bytes per second, and seconds.

    A launch of `short` seconds of work costs `launch_short` besides, one of `long` or more
    `launch_long`; between them it lies on a line.
    """

    stream: float
    stage: float
    launch_short: float
    launch_long: float
    short: float = 5e-6
    long: float = 1e-4

    def launch(self, work: float) -> float:
        if self.long <= self.short:
            return self.launch_long
        part = min(1.0, max(0.0, (work - self.short) / (self.long - self.short)))
        return self.launch_short + part * (self.launch_long - self.launch_short)


def read_rate(hardware: Hardware, threads: int, nbytes: float) -> float:
    """Bytes per second that threads read: of the last cache where half of it holds `nbytes`."""
    cached = nbytes < hardware.get("l3_size") / 2 and hardware.has("l3_bandwidth")
    name = "l3_bandwidth" if cached else "memory_bandwidth"
    return hardware.at(name, threads)


def costs_of(hardware: Hardware, threads: int, nbytes: float) -> Costs:
    """The costs that a description gives for a team that reads `nbytes` in each step."""
    long = hardware.at("start", threads)
    short = hardware.at("start_short", threads) if hardware.has("start_short") else long
    return Costs(
        stream=read_rate(hardware, threads, nbytes) * hardware.get("memory_share", 1.0),
        stage=hardware.at("stage_sync", threads),
        launch_short=short,
        launch_long=long,
    )


@dataclass(frozen=True)
class Shape:
    """What the time of a step depends on: the bytes and stages of each launch."""

    launches: tuple[tuple[float, int], ...]

    @property
    def nbytes(self) -> float:
        return sum(nbytes for nbytes, _ in self.launches)

    @property
    def stages(self) -> int:
        return sum(stages for _, stages in self.launches)

    def seconds(self, costs: Costs, launches_per_step: float = 1.0) -> float:
        """`launches_per_step` is below one where a launch makes several tokens."""
        total = 0.0
        for nbytes, stages in self.launches:
            work = nbytes / costs.stream + stages * costs.stage
            total += work + launches_per_step * costs.launch(work)
        return total


def shape(program: Program, load: Workload) -> Shape:
    """The shape of one step of `program`."""
    if program.launch == "program":
        return Shape((_counted(program, program.body, load),))
    return Shape(tuple(_counted(program, (item,), load) for item in program.body))


def _counted(program: Program, body: tuple[Item, ...], load: Workload) -> tuple[float, int]:
    """Bytes and stages of one pass through a body."""
    weights = {value.name: value.type for value in program.weights}
    constants = {each.value.name: each.number for each in program.constants}
    nbytes, stages = 0.0, 0
    known: dict[tuple[object, ...], float] = {}
    for call, args in executed(body, {}):
        pairs = list(zip((param.name for param in call.kernel.params), args, strict=True))
        held = {name: weights[outer] for name, outer in pairs if outer in weights}
        numbers = {name: constants[outer] for name, outer in pairs if outer in constants}
        key = (call.kernel, tuple(held.items()), tuple(numbers.items()))
        if key not in known:
            work, _ = kernel_work(call.kernel, held, frozenset(), 1, load, numbers)
            known[key] = sum(part.streamed for part in work)
        nbytes += known[key]
        stages += len(call.kernel.stages)
    return nbytes, stages


def fit(measured: Mapping[str, float], shapes: Mapping[str, Shape]) -> Costs:
    """The costs that give the measured seconds per step of one model, context and team.

    From `tokens` and `looped`, whose stages differ, the stream and the stage; from `fused` and
    `ops`, whose launches differ, what launches cost.
    """
    few, many = shapes["tokens"], shapes["looped"]
    stage = (measured["looped"] - measured["tokens"]) / (many.stages - few.stages)
    stage = max(0.0, stage)
    stream = few.nbytes / (measured["tokens"] - few.stages * stage)
    costs = Costs(stream, stage, 0.0, 0.0)

    def launch(rung: str) -> tuple[float, float]:
        """(mean work of a launch, what it costs besides)."""
        count = len(shapes[rung].launches)
        work = shapes[rung].seconds(costs)
        return work / count, max(0.0, measured[rung] - work) / count

    (short, at_short), (long, at_long) = launch("ops"), launch("fused")
    return Costs(stream, stage, at_short, at_long, short, long)
