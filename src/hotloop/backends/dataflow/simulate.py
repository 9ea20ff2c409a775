"""The clock of the simulated machine: when every launch, transfer and op of a step happens.

A program is run as it stands: its calls and loops, in order. All sockets do the same at the same
time, so one of them is enough, with what its messages to the others take.

    controller   loads a program where another kernel was there, loads arguments, starts the call,
                 and learns its end; with software orchestration the host issues each of these
                 commands: two or three for a call, where a GPU has one
    memory       sends weights and cache, in the order of the ops, in tiles, as long as there is
                 room on the chip: from the start of a call on, ahead of the ops that need them;
                 of experts those that the router has chosen, when it has
    units        compute a tile when it is there, the op's inputs are complete and the last tile is
                 done; a tile that is done makes room for another
    link         makes sums over sockets whole, streamed inside the kernel or as a call of its own

A loop is one call: it pays once, and its memory goes on from one iteration to the next. That is
all that looping changes here.

The schedule is static, and everything is served in program order: memory is a queue, and so are
units and link. So there is no choice to make at run time, and no queue of events to keep: the time
of an event is the latest of those that it waits for, and going through the program once gives
every one of them, exactly as a simulation with a heap would.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from hotloop.backends.dataflow.work import Work, Workload, kernel_work
from hotloop.ir.ops import OPS
from hotloop.ir.program import Call, Item, Kernel, Loop, Program
from hotloop.machine.hardware import Hardware

#: A stream is cut into at most so many tiles for each op …
TILES = 16
#: … of at least so many bytes.
TILE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Mode:
    """How a machine is run.

    `software`: the host issues each call. `streamed`: sums over sockets are made inside the kernel,
    not by a call of their own. `spilled`: the part of the weights that lies in the second memory.
    """

    software: bool = False
    streamed: bool = True
    spilled: float = 0.0


#: The machine's own schedule, sums streamed, everything in its main memory.
PLAIN = Mode()


@dataclass(frozen=True)
class Span:
    """`resource` was busy with `what` from `start` to `end` (seconds), moving `nbytes`."""

    resource: str
    what: str
    start: float
    end: float
    nbytes: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """A run: `seconds` of one step in steady state, and what was busy when.

    `executed` has the start and end of every op, in program order; `launches` how many calls the
    controller made; `streamed` the bytes that one socket's memory sent.
    """

    seconds: float
    launches: int
    streamed: float
    spans: tuple[Span, ...]
    executed: tuple[tuple[float, float], ...]


def simulate(
    program: Program,
    hardware: Hardware,
    load: Workload,
    mode: Mode = PLAIN,
    *,
    steps: int = 1,
    record: bool = False,
) -> Timeline:
    """Run `steps` steps of `program`; with `record`, keep the spans.

    A program that makes all tokens of a generation in one launch runs its loop `steps` times.
    """
    run = _Run(program, hardware, load, mode, record)
    run.resident = _last_kernel(program.body)
    ends = [0.0]
    for _ in range(1 if _endless(program) else steps):
        run.body(program.body, {}, steps)
        run.idle += hardware.get("token")
        ends.append(run.idle)
    if _endless(program):
        ends = run.step_ends
    return Timeline(
        seconds=(ends[-1] - ends[0]) / max(1, len(ends) - 1),
        launches=run.launches,
        streamed=run.streamed,
        spans=tuple(run.spans),
        executed=tuple(run.executed),
    )


def _endless(program: Program) -> bool:
    return any(isinstance(item, Loop) and item.trip is None for item in program.body)


def _last_kernel(body: tuple[Item, ...]) -> object:
    item = body[-1]
    return item.kernel if isinstance(item, Call) else item


@dataclass
class _Run:
    """The state of all resources: when each is next idle, and when each value is complete."""

    program: Program
    hardware: Hardware
    load: Workload
    mode: Mode
    record: bool
    idle: float = 0.0
    """When the controller is, and nothing runs."""
    launches: int = 0
    streamed: float = 0.0
    resident: object = None
    spans: list[Span] = field(default_factory=list)
    executed: list[tuple[float, float]] = field(default_factory=list)
    step_ends: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        h = self.hardware
        self.weights = {value.name: value.type for value in self.program.weights}
        self.constants = {each.value.name: each.number for each in self.program.constants}
        self.sockets = int(h["sockets"])
        self.bandwidth = h["memory_bandwidth"] * h["memory_share"]
        self.second = h.get("second_bandwidth")
        self.memory_free = self.second_free = self.unit_free = self.link_free = 0.0
        self.end = 0.0
        self.room = h["onchip_size"]
        self.waiting: deque[tuple[float, float]] = deque()  # (when its room is free, bytes)
        self.work: dict[object, tuple[tuple[Work, ...], frozenset[str]]] = {}
        self.split: set[str] = set()
        self.ready: dict[str, float] = {}

    # Calls and loops -----------------------------------------------------------------------------

    def body(self, items: tuple[Item, ...], names: Mapping[str, str], steps: int) -> None:
        for item in items:
            self.launch(item if isinstance(item, Loop) else item.kernel, _name(item))
            if isinstance(item, Call):
                self.call(item, names)
            else:
                self.loop(item, names, steps)
            self.idle = self.end

    def launch(self, what: object, name: str) -> None:
        """The controller's part of a call, from `idle` on; memory and units begin after it."""
        h, at = self.hardware, self.idle
        commands = [] if self.resident is what else ["program_load"]
        commands += ["argument_load", "start"]
        costs = [(name.replace("_", " "), h[name]) for name in commands if h.has(name)]
        parts = [("host", self.hosted(len(costs))), *costs, ("fill", h["fill"])]
        self.resident = what
        self.launches += 1
        for part, seconds in parts:
            self.span("controller", f"{part} {name}", at, at + seconds)
            at += seconds
        self.memory_free = max(self.memory_free, at)
        self.second_free = max(self.second_free, at)
        self.unit_free = max(self.unit_free, at)
        self.end = at

    def hosted(self, commands: int) -> float:
        """What the host takes to issue so many commands, one after another."""
        return commands * self.hardware["host_call"] if self.mode.software else 0.0

    def loop(self, loop: Loop, outside: Mapping[str, str], steps: int) -> None:
        """Iterations without launches; what is carried is the value of the iteration before."""
        carried = {arg.name: outside.get(arg.outer[0], arg.outer[0]) for arg in loop.args
                   if arg.kind == "carried"}  # fmt: skip
        for i in range(steps if loop.trip is None else loop.trip):
            names = {
                arg.name: carried.get(arg.name) or outside.get(outer, outer)
                for arg in loop.args
                for outer in [arg.outer[i if len(arg.outer) > 1 else 0]]
            }
            local = {name: f"{loop.index}.{i}.{name}" for name in _defined(loop.body)}
            names |= local
            for item in loop.body:
                if isinstance(item, Call):
                    self.call(item, names)
                else:
                    self.loop(item, names, steps)
            for arg in loop.args:
                if arg.kind == "carried":
                    carried[arg.name] = names[arg.next]
            if loop.trip is None:
                self.step_ends.append(self.end)
            for inner, outer in loop.yields:
                self.alias(outside.get(outer, outer), names[inner])

    def alias(self, name: str, other: str) -> None:
        self.ready[name] = self.ready.get(other, 0.0)
        if other in self.split:
            self.split.add(name)

    def call(self, call: Call, names: Mapping[str, str]) -> None:
        """The ops of a call, in order."""
        kernel = call.kernel
        args = {
            param.name: names.get(arg, arg)
            for param, arg in zip(kernel.params, call.args, strict=True)
        }
        outer = args | {
            inner: names.get(name, name)
            for inner, name in zip(kernel.results, call.results, strict=True)
        }
        work, halves = self.of(kernel, args)
        ready = {name: self.ready[outside] for name, outside in args.items()
                 if outside in self.ready}  # fmt: skip
        for part in work:
            self.op(part, ready, kernel.name)
        for name in kernel.results:
            self.ready[outer[name]] = ready[name]
            self.split.discard(outer[name])
            if name in halves:
                self.split.add(outer[name])

    def of(
        self, kernel: Kernel, args: Mapping[str, str]
    ) -> tuple[tuple[Work, ...], frozenset[str]]:
        stored = self.weights
        weights = {name: stored[outside] for name, outside in args.items() if outside in stored}
        split = frozenset(name for name, outside in args.items() if outside in self.split)
        known = self.constants
        numbers = {name: known[outside] for name, outside in args.items() if outside in known}
        key = (kernel, tuple(weights.items()), split, tuple(numbers.items()))
        if key not in self.work:
            self.work[key] = kernel_work(kernel, weights, split, self.sockets, self.load, numbers)
        return self.work[key]

    # Ops -----------------------------------------------------------------------------------------

    def op(self, work: Work, ready: dict[str, float], kernel: str) -> None:
        h, op = self.hardware, work.op
        sync = h["stage_sync"]
        inputs = max(
            (ready[name] + sync * (name in work.waits) for name in op.operands if name in ready),
            default=0.0,
        )
        label = f"@{kernel} {op.name}"
        if work.gathered:
            inputs = self.exchange(inputs, work.gathered, label)
        tiles = min(TILES, max(1, ceil(work.streamed / TILE_BYTES)))
        seconds = max(
            work.operations / h["compute"], (work.moved + work.streamed) / h["onchip_bandwidth"]
        )
        started, done = 0.0, inputs
        known = ready.get(work.chosen_by, 0.0) + sync if work.chosen_by else 0.0
        for tile in range(tiles):
            there = self.transfer(work.streamed / tiles, label, known) if work.streamed else 0.0
            start = max(inputs, there, self.unit_free)
            done = start + seconds / tiles
            self.unit_free = done
            if work.streamed:
                self.waiting.append((done, work.streamed / tiles))
            self.span("units", label, start, done)
            started = start if tile == 0 else started
        if work.reduced:
            done = self.exchange(done, work.reduced, label)
        self.executed.append((started, done))
        self.end = max(self.end, done)
        if op.result:
            ready[op.result.name] = done
        for name in _written(work):
            ready[name] = done

    def transfer(self, nbytes: float, label: str, known: float = 0.0) -> float:
        """Ask for a tile when there is room for it, and it is known which; when it has arrived."""
        at = max(self.memory_free, known)
        while self.room < nbytes and self.waiting:
            free, released = self.waiting.popleft()
            self.room += released
            at = max(at, free)
        self.room -= nbytes
        far = nbytes * self.mode.spilled
        end = at + (nbytes - far) / self.bandwidth
        self.span("memory", label, at, end, nbytes - far)
        self.memory_free = end
        self.streamed += nbytes
        if far:
            second = max(at, self.second_free)
            self.second_free = second + far / self.second
            self.span("second memory", label, second, self.second_free, far)
            end = max(end, self.second_free)
        return end + self.hardware["memory_latency"]

    def exchange(self, at: float, nbytes: float, label: str) -> float:
        """Make a value whole on all sockets; by a call of its own where it is not streamed."""
        h = self.hardware
        if not self.mode.streamed:
            at += h.get("argument_load") + h["start"] + h["fill"]
            at += self.hosted(1 + h.has("argument_load"))
            self.launches += 1
        at = max(at, self.link_free)
        end = at + h["link_latency"] + nbytes / h["link_bandwidth"]
        self.span("link", label, at, end, nbytes)
        self.link_free = end
        return end

    def span(self, resource: str, what: str, start: float, end: float, nbytes: float = 0) -> None:
        if self.record and end > start:
            self.spans.append(Span(resource, what, start, end, nbytes))


def _name(item: Item) -> str:
    if isinstance(item, Call):
        return f"@{item.kernel.name}"
    return f"loop %{item.index}"


def _defined(items: tuple[Item, ...]) -> list[str]:
    return [name for item in items for name in item.defines]


def _written(work: Work) -> list[str]:
    return [work.op.operands[i] for i in OPS[work.op.name].writes]
