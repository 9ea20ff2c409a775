"""predict: the time of a decode step of a model on a machine, from the program that it runs.

The graph goes through the passes of the compiler; the program of each rung is what is counted and
timed. A GPU runs the kernels of a library as a graph of launches; a dataflow machine the looped
program; a CPU a generation in one launch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from hotloop.backends.dataflow.simulate import Mode, Timeline, simulate
from hotloop.backends.dataflow.work import Workload, position_bytes
from hotloop.compiler import compile_graph
from hotloop.frontends.decoder import Decoder, Step
from hotloop.ir.graph import Graph
from hotloop.ir.program import Program
from hotloop.ir.verify import verify
from hotloop.machine.hardware import Hardware
from hotloop.machine.machine import Machine
from hotloop.passes.library import library
from hotloop.predict.cpu import UNPROBED, Kernels, Shape, costs_of, read_rate, shape
from hotloop.report.counts import count
from hotloop.util.errors import OutOfMemoryError, UsageError

#: What a machine runs unless asked otherwise.
SCHEDULES = {"gpu": "library", "dataflow": "looped", "cpu": "tokens"}
#: What `speedup_looped` compares.
COMPARED = ("fused", "looped")
#: Tokens that a generation in one launch is averaged over.
TOKENS = 4
#: Tokens of a generation that a CPU makes in one launch.
GENERATION = 64


class Programs:
    """The programs of a model's decode step: one for each schedule, made when first asked for.

    `cores` are the threads of a CPU's team.
    """

    def __init__(self, decoder: Decoder, context: int, cores: int = 1) -> None:
        self.decoder = decoder
        self.context = context
        self.cores = cores
        self._machine = Machine(decoder.name, cores)
        self._programs: dict[str, Program] = {}
        self._shapes: dict[tuple[str, Workload], Shape] = {}

    @cached_property
    def graph(self) -> Graph:
        return self.decoder.graph(Step(context=self.context))

    def shape(self, schedule: str, load: Workload) -> Shape:
        """What a CPU's step takes: of a program that is made for so many tokens."""
        key = schedule, load
        if key not in self._shapes:
            program = self[schedule]
            if load.rows > 1:
                follows = load.batch == 1  # tokens that follow each other are checked guesses
                step = Step(load.rows, self.context, batch=not follows, speculates=follows)
                graph = self.decoder.graph(step)
                program = compile_graph(graph, self._machine, schedule).program
            self._shapes[key] = shape(program, Workload(load.context))
        return self._shapes[key]

    def __getitem__(self, schedule: str) -> Program:
        if schedule not in self._programs:
            self._programs[schedule] = self._make(schedule)
        return self._programs[schedule]

    def _make(self, schedule: str) -> Program:
        if schedule == "library":
            program = library(self.graph)
            verify(program)
            return program
        return compile_graph(self.graph, self._machine, schedule).program

    @property
    def calls(self) -> dict[str, int]:
        names = ("ops", "library", "fused", "looped")
        return {name: count(self[name]).calls for name in names}

    @cached_property
    def weight_bytes(self) -> int:
        """All weights of the graph, read or not."""
        return sum(value.type.nbytes for value in self.graph.weights if value.name != "rope.table")

    @cached_property
    def embedding_bytes(self) -> int:
        """The embedding, of which a token reads a row, where nothing else reads it."""
        tables = {op.operands[1] for op in self.graph.ops if op.name == "embed"}
        read = {name for op in self.graph.ops if op.name != "embed" for name in op.operands}
        types = self.graph.types
        return sum(types[name].nbytes for name in tables - read)

    @cached_property
    def position_bytes(self) -> float:
        """Keys and values of one position."""
        caches = {
            name
            for op in self.graph.ops
            if op.name in ("attend", "attention")
            for name in op.operands[1:3]
        }
        return sum(position_bytes(self.graph.types[name]) for name in caches)


@dataclass(frozen=True)
class Prediction:
    """A step's time on a machine.

    `tok_s` counts the tokens of all sequences; `ms` is a step. `share` is the part of `peak` that
    the bytes of a step take: all sockets' memory, or what a CPU's threads read of it or of its last
    cache, where that holds the weights. `calls` are those of a step in each schedule, and
    `speedup_looped` is the time of the fused program over that of the looped one.
    """

    model: str
    machine: str
    schedule: str
    context: int
    batch: int
    tok_s: float
    ms: float
    share: float
    peak: float
    calls: Mapping[str, int]
    speedup_looped: float
    bytes_per_token: float
    weight_bytes: float
    kv_bytes: float
    spilled: float

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def predict(
    programs: Programs,
    hardware: Hardware,
    *,
    batch: int = 1,
    schedule: str | None = None,
    mode: Mode | None = None,
    kernels: Kernels = UNPROBED,
) -> Prediction:
    """The prediction for steps that add a token to each of `batch` sequences of full context.

    `kernels` are what was probed of a CPU's (`needed_shapes` says of which programs). Raises
    `OutOfMemoryError` where weights and caches do not fit in the machine's memories.
    """
    load = Workload(programs.context, batch)
    schedule = schedule or SCHEDULES[hardware.kind]
    mode = replace(mode or Mode(), spilled=spilled(programs, hardware, load))
    times = {
        name: timeline(programs, hardware, load, name, mode, kernels=kernels)
        for name in {schedule, *COMPARED}
    }
    seconds = times[schedule].seconds
    step_bytes = times[schedule].streamed * hardware["sockets"]
    peak = hardware["memory_bandwidth"] * hardware["sockets"]
    if hardware.kind == "cpu":
        peak = read_rate(hardware, programs.cores, step_bytes)
    return Prediction(
        model=programs.decoder.file.path.name,
        machine=hardware.name,
        schedule=schedule,
        context=programs.context,
        batch=batch,
        tok_s=batch / seconds,
        ms=1e3 * seconds,
        share=step_bytes / seconds / peak,
        peak=peak,
        calls=programs.calls,
        speedup_looped=times["fused"].seconds / times["looped"].seconds,
        bytes_per_token=step_bytes / batch,
        weight_bytes=programs.weight_bytes,
        kv_bytes=programs.position_bytes * programs.context * batch,
        spilled=mode.spilled,
    )


def needed_shapes(
    programs: Programs, hardware: Hardware, load: Workload, schedule: str | None = None
) -> list[Shape]:
    """Of a CPU: what `predict` looks at."""
    names = {schedule or SCHEDULES[hardware.kind], *COMPARED}
    return [programs.shape(name, load) for name in sorted(names)]


def timeline(
    programs: Programs,
    hardware: Hardware,
    load: Workload,
    schedule: str,
    mode: Mode,
    *,
    record: bool = False,
    kernels: Kernels = UNPROBED,
) -> Timeline:
    """A step of one schedule; bytes and seconds are per step, also where a launch makes several.

    A CPU's step has no spans: its time is a sum (`hotloop.predict.cpu`).
    """
    if hardware.kind == "cpu":
        return _cpu_step(programs, hardware, load, schedule, kernels)
    steps = TOKENS if schedule == "tokens" else 1
    run = simulate(programs[schedule], hardware, load, mode, steps=steps, record=record)
    return replace(run, streamed=run.streamed / steps)


def _cpu_step(
    programs: Programs, hardware: Hardware, load: Workload, schedule: str, kernels: Kernels
) -> Timeline:
    found = programs.shape(schedule, load)
    costs = costs_of(hardware, programs.cores, found.nbytes, kernels)
    per_step = 1 / GENERATION if schedule == "tokens" else 1.0
    seconds = found.seconds(costs, per_step)
    return Timeline(seconds, len(found.launches), found.nbytes, (), ())


def team(hardware: Hardware, threads: int | None) -> int:
    """The threads that share the work of a CPU; raises `UsageError` for more than it has."""
    if threads is not None and hardware.kind != "cpu":
        raise UsageError(f"{hardware.name} is no CPU, and has no threads to choose; leave -t out.")
    cores = int(hardware.get("cores", 1))
    if threads is not None and threads > cores:
        raise UsageError(f"{hardware.name} has {cores} cores, not {threads}; give fewer threads.")
    return threads or cores


def recorded(
    programs: Programs, hardware: Hardware, prediction: Prediction, mode: Mode | None = None
) -> Timeline:
    """The step of a prediction again, with what was busy when."""
    load = Workload(prediction.context, prediction.batch)
    if hardware.kind == "cpu":
        raise UsageError(f"the time of {hardware.name} is a sum, which has no trace to write.")
    mode = replace(mode or Mode(), spilled=prediction.spilled)
    return timeline(programs, hardware, load, prediction.schedule, mode, record=True)


def spilled(programs: Programs, hardware: Hardware, load: Workload) -> float:
    """The part of what a step reads that lies in the second memory: what does not fit the first.

    A table of which a token reads only a row goes there first, as it costs least.
    """
    sockets = hardware["sockets"]
    cache = programs.position_bytes * load.context * load.batch
    needed = programs.weight_bytes + cache
    room = hardware["memory_size"] * sockets
    if needed <= room:
        return 0.0
    second = hardware.get("second_size") * sockets
    if needed > room + second:
        raise OutOfMemoryError(
            f"{programs.decoder.file.path.name} needs {needed / 1e9:,.0f} GB for weights and KV "
            f"cache, and {hardware.name} has {(room + second) / 1e9:,.0f}; use more sockets, a "
            "shorter context, a smaller batch, or --weights with fewer bits."
        )
    read = needed - programs.embedding_bytes
    return max(0.0, read - room) / read


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding: a draft proposes `tokens` tokens, the target checks them in one step.

    Each is accepted with probability `acceptance`, independently (Leviathan et al., 2023, arXiv
    2211.17192): a round yields (1 - a^(k+1)) / (1 - a) tokens.
    """

    tokens: int
    acceptance: float

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.acceptance <= 1:
            raise UsageError(
                f"a draft of {self.tokens} tokens accepted with probability {self.acceptance} is "
                "not possible; give at least one token, and a probability between 0 and 1."
            )

    @property
    def expected(self) -> float:
        """Tokens that a round of draft and target yields for each sequence."""
        return sum(self.acceptance**i for i in range(self.tokens + 1))


def predict_speculative(
    target: Programs,
    draft: Programs,
    speculation: Speculation,
    hardware: Hardware,
    *,
    batch: int = 1,
    mode: Mode | None = None,
    kernels: Kernels = UNPROBED,
) -> tuple[float, Prediction]:
    """Tokens per second of all sequences, with the plain prediction of the target.

    Draft and target lie in the machine together and take turns.
    """
    plain = predict(target, hardware, batch=batch, mode=mode, kernels=kernels)
    mode = mode or Mode()
    schedule = SCHEDULES[hardware.kind]
    context = target.context
    drafting = timeline(draft, hardware, Workload(context, batch), schedule, mode, kernels=kernels)
    checked = Workload(context, batch, speculation.tokens + 1)
    checking = timeline(target, hardware, checked, schedule, mode, kernels=kernels)
    seconds = speculation.tokens * drafting.seconds + checking.seconds
    return batch * speculation.expected / seconds, plain
