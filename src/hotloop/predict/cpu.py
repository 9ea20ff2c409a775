"""The cost model of a CPU: a step's time from the stages and launches of its program.

    product   the bytes of its weights at the rate at which its kernel streams them, on all threads,
              for so many tokens; where no kernel was probed, at the memory's
    other op  its rows at what a row costs a core; no faster than memory sends what it reads of the
              cache; divided among the threads, as far as it has tiles
    each      what every thread computes for itself takes as long on many threads as on one
    stage     every thread waits for the last one's last tile, finds what others have written, and
              starts a new stream: about the same for every stage
    launch    waking parked threads and joining them. The threads of a launch end together, and
              whether one of them is asleep when the next begins is a race that long launches lose
              less often (`hotloop.predict.reference`): so what a launch costs depends on its work

Nothing here knows which rung it looks at: rungs differ in their ops' stages and launches.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hotloop.backends.cpu.kernel_probe import AttentionCase, OpCase, ProductCase, StreamCase
from hotloop.backends.cpu.places import op_spec
from hotloop.backends.dataflow.work import Work, Workload, kernel_work
from hotloop.ir.program import Item, Kernel, Program
from hotloop.ir.types import TensorType
from hotloop.kernels.tile import OpSpec
from hotloop.machine.hardware import Hardware
from hotloop.report.counts import executed

#: Positions at which ops are probed: what attention costs lies on the line between the two.
POSITIONS = (127, 511)
_PRODUCTS = ("linear", "expert_linear", "expert_mix")
_ATTENTION = ("attend", "attention")


@dataclass(frozen=True)
class Kernels:
    """What kernels cost by themselves, as probed.

    `rows` has seconds of a row of an op on one thread, `streams` bytes per second of all threads.
    """

    rows: Mapping[OpCase, float] = field(default_factory=dict)
    streams: Mapping[StreamCase, float] = field(default_factory=dict)

    def faster(self, factor: float) -> "Kernels":
        """Where memory sends `factor` times as much in a second."""
        return replace(self, streams={case: factor * rate for case, rate in self.streams.items()})

    def row(self, spec: OpSpec, position: int) -> float:
        """Seconds of a row of an op at `position`; 0 where it was not probed."""
        first, second = (self.rows.get(OpCase(spec, at), 0.0) for at in POSITIONS)
        if spec.name not in _ATTENTION:
            return first
        slope = (second - first) / (POSITIONS[1] - POSITIONS[0])
        least = min(position / POSITIONS[0], 1.0) * first
        return max(least, first + slope * (position - POSITIONS[0]))


#: Where no kernel was probed, memory and synchronisation are all there is.
UNPROBED = Kernels()


@dataclass(frozen=True)
class Costs:
    """Of a team of so many threads: bytes per second, and seconds.

    `stream` is what the threads read of memory. `launches` are pairs: a launch of so much work
    costs so much besides. Between two of them it lies on a line, and outside as at the nearest.
    """

    stream: float
    stage: float
    launches: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    threads: int = 1
    kernels: Kernels = UNPROBED

    def launch(self, work: float) -> float:
        """Seconds that a launch of `work` seconds costs besides."""
        points = sorted(self.launches)
        below = max((at for at in points if at[0] <= work), default=points[0])
        above = min((at for at in points if at[0] >= work), default=points[-1])
        if above[0] <= below[0]:
            return below[1]
        return below[1] + (work - below[0]) / (above[0] - below[0]) * (above[1] - below[1])


def read_rate(hardware: Hardware, threads: int, nbytes: float) -> float:
    """Bytes per second that threads read: of the last cache where half of it holds `nbytes`."""
    cached = nbytes < hardware.get("l3_size") / 2 and hardware.has("l3_bandwidth")
    name = "l3_bandwidth" if cached else "memory_bandwidth"
    return hardware.at(name, threads)


def costs_of(hardware: Hardware, threads: int, nbytes: float, kernels: Kernels = UNPROBED) -> Costs:
    """The costs that a description gives for a team that reads `nbytes` in each step."""
    starts = [name for name in ("start_short", "start", "start_long") if hardware.has(name)]
    works = [f"{name}_work" for name in starts]
    return Costs(
        stream=read_rate(hardware, threads, nbytes) * hardware.get("memory_share", 1.0),
        stage=hardware.at("stage_sync", threads),
        launches=tuple(
            (hardware.at(work, threads) if hardware.has(work) else 0.0, hardware.at(name, threads))
            for work, name in zip(works, starts, strict=True)
        ),
        threads=threads,
        kernels=kernels,
    )


@dataclass(frozen=True)
class Piece:
    """An op of a stage: `rows` in so many `tiles`, or on every thread where there are none.

    `weight_bytes` are those that it streams for each step, `cache_bytes` keys and values.
    """

    spec: OpSpec
    position: int
    rows: int
    tiles: int
    weight_bytes: float
    cache_bytes: float

    @property
    def stream(self) -> StreamCase | None:
        """What probes what it streams; experts are products of a token each."""
        if self.spec.name == "attend":
            return AttentionCase(self.spec)
        if self.spec.name not in _PRODUCTS:
            return None
        x, weight = self.spec.operands[:2]
        count = x.shape[0] if self.spec.name == "linear" else 1
        return ProductCase(weight.format.name, x.format.name, weight.shape[-1], count)

    @property
    def is_product(self) -> bool:
        return isinstance(self.stream, ProductCase)

    def streaming(self, costs: Costs) -> float:
        """Seconds for what it reads of memory to come by."""
        rate = costs.stream
        if self.stream is not None:
            rate = costs.kernels.streams.get(self.stream, rate)
        return (self.weight_bytes + self.cache_bytes) / rate

    def computing(self, costs: Costs) -> float:
        """Seconds for what it reads of caches; 0 for a product, whose stream is never faster."""
        if self.is_product:
            return 0.0
        seconds = self.rows * costs.kernels.row(self.spec, self.position)
        return seconds / min(costs.threads, self.tiles) if self.tiles else seconds

    def seconds(self, costs: Costs) -> float:
        return max(self.streaming(costs), self.computing(costs))


Stage = tuple[Piece, ...]
Launch = tuple[Stage, ...]


@dataclass(frozen=True)
class Shape:
    """What the time of a step depends on: the stages of each launch."""

    launches: tuple[Launch, ...]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Each piece that occurs, once."""
        stages = dict.fromkeys(stage for launch in self.launches for stage in launch)
        return tuple(dict.fromkeys(piece for stage in stages for piece in stage))

    @cached_property
    def nbytes(self) -> float:
        return sum(
            piece.weight_bytes + piece.cache_bytes
            for launch in self.launches
            for stage in launch
            for piece in stage
        )

    @cached_property
    def stages(self) -> int:
        return sum(map(len, self.launches))

    def works(self, costs: Costs) -> list[float]:
        """Seconds of each launch, without what launching costs."""
        known = {piece: piece.seconds(costs) for piece in self.pieces}
        of_stage: dict[Stage, float] = {}
        for launch in self.launches:
            for stage in launch:
                if stage not in of_stage:
                    of_stage[stage] = costs.stage + sum(known[piece] for piece in stage)
        return [sum(of_stage[stage] for stage in launch) for launch in self.launches]

    def seconds(self, costs: Costs, launches_per_step: float = 1.0) -> float:
        """`launches_per_step` is below one where a launch makes several tokens."""
        return sum(work + launches_per_step * costs.launch(work) for work in self.works(costs))


def op_cases(shapes: Iterable[Shape]) -> list[OpCase]:
    """What to probe of the ops that are no products."""
    specs = (piece.spec for found in shapes for piece in found.pieces if not piece.is_product)
    return [
        OpCase(spec, at)
        for spec in dict.fromkeys(specs)
        for at in (POSITIONS if spec.name in _ATTENTION else POSITIONS[:1])
    ]


def stream_cases(shapes: Iterable[Shape]) -> list[StreamCase]:
    """What to probe of the products."""
    streams = (piece.stream for found in shapes for piece in found.pieces)
    return list(dict.fromkeys(stream for stream in streams if stream is not None))


def shape(program: Program, load: Workload) -> Shape:
    """The shape of one step of `program`."""
    maker = _Stages(program, load)
    if program.launch == "program":
        return Shape((tuple(maker.of(program.body)),))
    return Shape(tuple(tuple(maker.of((item,))) for item in program.body))


class _Stages:
    """Makes stages, those of equal calls once."""

    def __init__(self, program: Program, load: Workload) -> None:
        self.load = load
        self.weights = {value.name: value.type for value in program.weights}
        self.constants = {each.value.name: each.number for each in program.constants}
        self.known: dict[tuple[object, ...], Launch] = {}

    def of(self, body: tuple[Item, ...]) -> Iterator[Stage]:
        """The stages of one pass through a body."""
        for call, args in executed(body, {}):
            names = [param.name for param in call.kernel.params]
            pairs = list(zip(names, args, strict=True))
            held = {name: self.weights[outer] for name, outer in pairs if outer in self.weights}
            numbers = {
                name: self.constants[outer] for name, outer in pairs if outer in self.constants
            }
            key = (call.kernel, tuple(held.items()), tuple(numbers.items()))
            if key not in self.known:
                self.known[key] = tuple(self._stages(call.kernel, held, numbers))
            yield from self.known[key]

    def _stages(
        self, kernel: Kernel, held: Mapping[str, TensorType], numbers: Mapping[str, float]
    ) -> Iterator[Stage]:
        work, _ = kernel_work(kernel, held, frozenset(), 1, self.load, numbers)
        types = {**kernel.types, **held}
        left = iter(work)
        for stage in kernel.stages:
            pieces = [self._piece(next(left), types, numbers, 0) for _ in stage.each]
            for part in stage.parts:
                rows = op_spec(part.ops[0], types).rows
                tiles = max(1, -(-rows // part.tile))
                pieces += [self._piece(next(left), types, numbers, tiles) for _ in part.ops]
            yield tuple(pieces)

    def _piece(
        self, work: Work, types: dict[str, TensorType], numbers: Mapping[str, float], tiles: int
    ) -> Piece:
        spec = op_spec(work.op, types)
        position = self.load.context - 1
        cache = 0.0
        if spec.name in _ATTENTION:
            cache = work.streamed
            window = dict(work.op.attrs).get("window", 0)
            for attr, param in work.op.scalars:
                window = numbers.get(param, window) if attr == "window" else window
            position = min(position, int(window) - 1) if window else position
        return Piece(spec, position, spec.rows, tiles, work.streamed - cache, cache)
