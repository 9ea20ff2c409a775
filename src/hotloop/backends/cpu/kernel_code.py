"""Kernel functions: a kernel's stages as code that every thread of the team runs.

    i64 kernel(context, team, tid, epoch, sync, ready, target, first,
               arguments…, formats…, results…)

`epoch` says how often this call has run before in this launch; `sync` is the offset of its stages'
counters in the team's memory; what precedes the call is complete when the counter at offset `ready`
reaches `target`; `first` numbers its stages for the watchdog. Of an argument with variants,
`formats` has the format's number: the tile function is chosen for each tile, not inside it. Returns
0, or 1 after an abort.

A stage, on each thread:

    tile = claim()                    (before waiting, where the stage prefetches:
    ask for the weights of `tile`      which tile it will be depends on no activation)
    wait for the stages before
    compute for myself what every tile needs
    while there is a tile: compute it; claim the next
    say how many I have completed

Profiled code notes the time between these (`profile`); without it, not an instruction is added.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from llvmlite import ir

from hotloop.backends.cpu import shared
from hotloop.backends.cpu.places import Work, op_spec
from hotloop.backends.cpu.profile import Event
from hotloop.backends.cpu.sync import Sync, word
from hotloop.ir.graph import Op
from hotloop.ir.ops import GROUP
from hotloop.ir.program import ENTRY, Kernel, Part, Stage
from hotloop.ir.types import FORMATS, Format, TensorType
from hotloop.kernels.pack import group_bytes
from hotloop.kernels.tile import OpSpec, define
from hotloop.lang import (
    Module,
    Pointer,
    Value,
    Var,
    call,
    constant,
    fetch_add,
    function,
    i32,
    i64,
    if_,
    load_relaxed,
    loop,
    minimum,
    prefetch,
    ptr,
    ret,
    while_,
)

#: Bytes of a tile's weights that are asked for before waiting; the kernel's own prefetch takes
#: over from there.
PREFETCH_BYTES = 4096
CACHE_LINE = 64

_FIXED = (
    ("context", ptr),
    ("team", ptr),
    ("tid", i64),
    ("epoch", i64),
    ("sync", i64),
    ("ready", i64),
    ("target", i64),
    ("first", i64),
)


@dataclass(frozen=True)
class CallSite:
    """What tells one call of a kernel from another, besides its arguments."""

    epoch: Value
    sync: Value
    ready: Value
    target: Value
    first: int


class KernelCode:
    """The tile and kernel functions of one module, each made when first called."""

    def __init__(self, module: Module, sync: Sync, work: Work, profiled: bool = False) -> None:
        self.module = module
        self.sync = sync
        self.work = work
        self.profiled = profiled
        self._tiles: dict[OpSpec, ir.Function] = {}
        self._kernels: dict[Kernel, ir.Function] = {}

    def call(
        self,
        kernel: Kernel,
        thread: tuple[Value, Value, Value],
        site: CallSite,
        arguments: Sequence[Value],
    ) -> None:
        """Trace a call, and leave the caller with 1 when it was aborted.

        `thread` is (context, team, tid); `arguments` are the addresses of the kernel's arguments,
        the numbers of the formats of those with variants, and the addresses of its results.
        """
        if kernel not in self._kernels:
            self._define(kernel)
        first = constant(site.first, i64)
        fixed = [*thread, site.epoch, site.sync, site.ready, site.target, first]
        with if_(call(self._kernels[kernel], [*fixed, *arguments]).differs(0)):
            ret(1)

    @staticmethod
    def exit_index(kernel: Kernel) -> int:
        """The stage that stands for the whole call: a kernel waits for its other exits itself."""
        names = [stage.name for stage in kernel.stages]
        return max(names.index(name) for name in kernel.exits)

    def tiles(self, kernel: Kernel, stage: Stage) -> int:
        return sum(_tile_count(kernel, part) for part in stage.parts)

    def _define(self, kernel: Kernel) -> None:
        params = [*_FIXED, *((param.name, ptr) for param in kernel.params)]
        params += [(f"{name}.format", i64) for name in variants(kernel)]
        params += [(f"{name}.result", ptr) for name in kernel.results]
        for op in kernel.ops:
            for spec in op_spec(op, kernel.types).cases:
                self._tile_function(spec)
        name = f"kernel_{kernel.name}"
        with function(self.module, name, params, i64, noinline=True) as arguments:
            body = _KernelBody(self, kernel, arguments)
            for stage in kernel.stages:
                body.stage(stage)
            body.wait_for_other_exits()
            ret(0)
        self._kernels[kernel] = self.module.functions[name]

    def _tile_function(self, spec: OpSpec) -> ir.Function:
        if spec not in self._tiles:
            name = f"tile_{spec.name}_{len(self._tiles)}"
            self._tiles[spec] = define(self.module, spec, name)
        return self._tiles[spec]


def variants(kernel: Kernel) -> list[str]:
    """The parameters whose format is chosen by the caller."""
    return [param.name for param in kernel.params if param.type.format.variants]


def format_number(format: Format) -> int:
    """What stands for a format where the choice is made while the program runs."""
    return list(FORMATS).index(format.name)


def _tile_count(kernel: Kernel, part: Part) -> int:
    return -(-op_spec(part.ops[0], kernel.types).rows // part.tile)


class _KernelBody:
    """Traces the stages of one kernel into the function being defined."""

    def __init__(self, code: KernelCode, kernel: Kernel, arguments: Sequence[Value]) -> None:
        self.code = code
        self.kernel = kernel
        (self.context, self.team, self.tid, self.epoch) = arguments[:4]
        (self.sync, self.ready, self.target, self.first) = arguments[4:8]
        self.stage_bytes = (word(self.team, shared.THREADS).load() + 1) * shared.LINE
        # It may be for the next step by now: then nothing of this one is left to do.
        count = word(self.context, 8 * shared.COUNT).load_pointer().cast(i32)
        self.count = load_relaxed(count).to(i64)
        names = [*(param.name for param in kernel.params), *kernel.results]
        pointers = [argument for argument in arguments[8:] if isinstance(argument, Pointer)]
        self.places: dict[str, Pointer] = dict(zip(names, pointers, strict=True))
        numbers = [argument for argument in arguments[8:] if not isinstance(argument, Pointer)]
        self.formats: dict[str, Value] = dict(zip(variants(kernel), numbers, strict=True))
        work = word(self.context, 8 * shared.WORK).load_pointer()
        for name, offset in code.work.inside[kernel].items():
            self.places[name] = work.at(offset)
        scratch = word(self.context, 8 * shared.SCRATCH).load_pointer()
        self.scratch = scratch.at(self.tid * code.work.scratch_bytes)
        for name, offset in code.work.scratch[kernel].items():
            self.places[name] = self.scratch.at(offset)

    def stage(self, stage: Stage) -> None:
        tiles = self.code.tiles(self.kernel, stage)
        claim = self._claimer(stage, tiles)
        event = self._event(stage)
        event.stamp("start")
        tile = Var(constant(-1, i64))
        if stage.prefetch:
            tile.set(claim())
            self._prefetch(stage, tile)
        event.stamp("asked")
        self._wait(stage)
        event.stamp("waited", "each", "end")
        event.put("tiles", 0)
        if not stage.prefetch:
            tile.set(claim())
        with if_(tile >= 0):
            for op in stage.each:
                rows = op_spec(op, self.kernel.types).rows
                self._compute(op, constant(0, i64), constant(rows, i64))
            event.stamp("each")
            completed = Var(constant(0, i64))
            for _ in while_(lambda: tile >= 0):
                self._run_tile(stage, tile)
                completed.set(completed + 1)
                tile.set(claim())
            event.stamp("end")
            event.put("tiles", completed)
            fetch_add(word(self._counters(stage), shared.DONE), completed)

    def _event(self, stage: Stage) -> Event:
        if not self.code.profiled:
            return Event()
        number = self.first + self._index(stage.name)
        return Event.begin(self.context, self.tid, number, self.epoch)

    def wait_for_other_exits(self) -> None:
        """A caller waits for one stage only, so the kernel waits for the rest."""
        last = self.kernel.stages[self.code.exit_index(self.kernel)]
        for name in self.kernel.exits:
            if name != last.name:
                self._wait_for(name, last)

    def _index(self, name: str) -> int:
        return [stage.name for stage in self.kernel.stages].index(name)

    def _counters(self, stage: Stage) -> Pointer:
        assert isinstance(self.team, Pointer)
        return self.team.at(self.sync + self.stage_bytes * self._index(stage.name))

    def _claimer(self, stage: Stage, tiles: int) -> Callable[[], Value]:
        claims = self._counters(stage).at(shared.CLAIMS)

        def claim() -> Value:
            arguments = [claims, self.epoch, constant(tiles, i64), self.team, self.tid]
            return call(self.code.sync.claim, arguments)

        return claim

    def _wait(self, stage: Stage) -> None:
        number = self.first + self._index(stage.name)
        if stage.barrier:
            barrier = [self.team, self.tid, number, self.epoch]
            self._leave_if(call(self.code.sync.barrier, barrier))
            return
        for name in stage.after:
            self._wait_for(name, stage)

    def _wait_for(self, name: str, waiting: Stage) -> None:
        assert isinstance(self.team, Pointer)
        if name == ENTRY:
            counter, target = self.team.at(self.ready), self.target
        else:
            awaited = self.kernel.stages[self._index(name)]
            counter = self._counters(awaited).at(shared.DONE)
            target = (self.epoch + 1) * self.code.tiles(self.kernel, awaited)
        number = self.first + self._index(waiting.name)
        wait = [counter, target, self.team, self.tid, number, self.epoch]
        self._leave_if(call(self.code.sync.wait, wait))

    @staticmethod
    def _leave_if(status: Value) -> None:
        with if_(status.differs(0)):
            ret(1)

    def _run_tile(self, stage: Stage, tile: Value) -> None:
        """Tiles are numbered through the parts; compute the one with this number."""
        first = 0
        for part in stage.parts:
            tiles = _tile_count(self.kernel, part)
            lo = (tile - first) * part.tile
            rows = op_spec(part.ops[0], self.kernel.types).rows
            with if_((tile >= first) & (tile < first + tiles)):
                for op in part.ops:
                    self._compute(op, lo, minimum(lo + part.tile, rows))
            first += tiles

    def _compute(self, op: Op, lo: Value, hi: Value) -> None:
        names = [*op.reads, *([op.result.name] if op.result else [])]
        addresses = [self.places[name] for name in names]
        spec = op_spec(op, self.kernel.types)
        arguments = [*addresses, lo, hi, self.count, self.places[""]]
        for case in spec.cases:
            with self._case(op, case.operands):
                call(self.code._tile_function(case), arguments)

    @contextmanager
    def _case(self, op: Op, types: Sequence[TensorType]) -> Iterator[None]:
        """What is traced inside runs only where the op's operands have these types."""
        with ExitStack() as conditions:
            for name, type in zip(op.operands, types, strict=True):
                if name in self.formats:
                    same = self.formats[name].equals(format_number(type.format))
                    conditions.enter_context(if_(same))
            yield

    def _prefetch(self, stage: Stage, tile: Value) -> None:
        """Ask for the first weights of the tile."""
        first = 0
        for part in stage.parts:
            tiles = _tile_count(self.kernel, part)
            linear = next((op for op in part.ops if op.name == "linear"), None)
            if linear is not None:
                with if_((tile >= first) & (tile < first + tiles)):
                    for spec in op_spec(linear, self.kernel.types).cases:
                        tile_bytes = part.tile // GROUP * group_bytes(spec.operands[1])
                        with self._case(linear, spec.operands):
                            weights = self.places[linear.operands[1]]
                            start = weights.at((tile - first) * tile_bytes)
                            for at in loop(min(PREFETCH_BYTES, tile_bytes), step=CACHE_LINE):
                                prefetch(start.at(at))
            first += tiles
