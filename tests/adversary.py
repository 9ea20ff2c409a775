"""Run a program the way the worst possible thread team would.

Loops are written out, every stage becomes tiles, and any tile may run as soon as the stages that
its own stage waits for are complete: that is all that the edges of a program promise. Buffers are
those of a real run: one for a call's result at its place, one for a value inside a kernel whatever
call it is in, one or two for a carried value, that of the input for an output that is fed back.

Written against the words of the model, not against the verifier: what one of them gets wrong, the
other shows. `meaning` gives what the program says, with no memory to share.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hotloop.ir.graph import Op
from hotloop.ir.ops import OPS, Array, row_count
from hotloop.ir.program import ENTRY, Call, Item, Kernel, Loop, Program, Stage
from hotloop.ir.types import TensorType

Places = dict[object, Array]


def meaning(program: Program, values: dict[str, Array], steps: int = 3) -> dict[str, Array]:
    """The outputs, every value in memory of its own. An open loop runs `steps` times."""
    names = {**values, **_constants(program)}
    _pure_body(program.body, names, steps)
    return {name: names[name] for name in program.outputs}


def _constants(program: Program) -> dict[str, Array]:
    return {each.value.name: np.array(each.number) for each in program.constants}


def _pure_body(body: tuple[Item, ...], names: dict[str, Array], steps: int) -> None:
    for item in body:
        if isinstance(item, Call):
            params = [param.name for param in item.kernel.params]
            local = dict(zip(params, (names[arg] for arg in item.args), strict=True))
            for op in item.kernel.ops:
                value = _apply(op, local)
                if op.result and value is not None:
                    local[op.result.name] = value
            for name, result in zip(item.results, item.kernel.results, strict=True):
                names[name] = local[result]
            continue
        carried = {arg.name: names[arg.outer[0]] for arg in item.args if arg.kind == "carried"}
        for i in range(item.trip or steps):
            inner = {arg.name: names[arg.outer[i % len(arg.outer)]] for arg in item.args}
            inner.update(carried)
            _pure_body(item.body, inner, steps)
            carried = {arg.name: inner[arg.next] for arg in item.args if arg.kind == "carried"}
        names.update((outer, inner[name]) for name, outer in item.yields)


def _apply(op: Op, names: dict[str, Array]) -> Array | None:
    attrs = {**dict(op.attrs), **{attr: names[name].item() for attr, name in op.scalars}}
    with np.errstate(all="ignore"):
        return OPS[op.name].meaning(*(names[name] for name in op.operands), **attrs)


# The program written out -------------------------------------------------------------------------


@dataclass
class _Run:
    """One run of a stage: the memory it works on, what it waits for, and its tiles to do."""

    kernel: Kernel
    stage: Stage
    names: dict[str, Array]
    waits: list["_Run"]
    tiles: list[tuple[int, int]]

    @property
    def complete(self) -> bool:
        return not self.tiles

    @property
    def ready(self) -> bool:
        return bool(self.tiles) and all(run.complete for run in self.waits)


def adversary(
    program: Program, values: dict[str, Array], seed: int, steps: int = 3
) -> dict[str, Array]:
    """The outputs of `program` under a random legal schedule; states in `values` are written."""
    names = {**values, **_constants(program)}
    for value in program.inputs:
        names[value.name] = names[value.name].copy()
    unrolled = _Unrolled(program, steps)
    fixed = {source: names[target] for source, target in program.feedback}
    unrolled.body(program.body, names, fixed, ())
    chance = random.Random(seed)
    eager = chance.random()  # how often the latest stage that may run does
    todo = unrolled.runs
    while todo:
        ready = [run for run in todo if run.ready]
        run = ready[-1] if chance.random() < eager else chance.choice(ready)
        tile = run.tiles[chance.randrange(len(run.tiles))]
        _compute(run, *tile)
        run.tiles.remove(tile)
        if run.complete:
            todo = [other for other in todo if not other.complete]
    return {name: names[name] for name in program.outputs}


class _Unrolled:
    """Every run of every stage, in program order."""

    def __init__(self, program: Program, steps: int) -> None:
        self.program = program
        self.steps = steps
        self.runs: list[_Run] = []
        self.before: list[_Run] = []  # the exits of the call before
        self.launched: list[_Run] = []  # everything in the launches before
        self.places: Places = {}

    def place(self, key: object, type: TensorType) -> Array:
        if key not in self.places:
            dtype = type.format.numpy or np.dtype(np.float32)
            array = np.zeros(type.shape, dtype)
            array.fill(np.nan if dtype.kind == "f" else 0)
            self.places[key] = array
        return self.places[key]

    def body(
        self,
        items: tuple[Item, ...],
        names: dict[str, Array],
        fixed: dict[str, Array],
        path: tuple[int, ...],
    ) -> None:
        for k, item in enumerate(items):
            if not path and self.program.launch == "item":
                self.launched = list(self.runs)
            if isinstance(item, Call):
                self.call(item, names, fixed, path)
            else:
                self.loop(item, names, (*path, k))

    def call(
        self,
        call: Call,
        names: dict[str, Array],
        fixed: dict[str, Array],
        path: tuple[int, ...],
    ) -> None:
        kernel = call.kernel
        local = {
            param.name: names[arg] for param, arg in zip(kernel.params, call.args, strict=True)
        }
        for name, result in zip(call.results, kernel.results, strict=True):
            own = self.place((path, name), kernel.types[result])
            names[name] = local[result] = fixed.get(name, own)
        for op in kernel.ops:
            if op.result and op.result.name not in local:
                local[op.result.name] = self.place((kernel, op.result.name), op.result.type)
        runs: dict[str, _Run] = {}
        for stage in kernel.stages:
            if stage.barrier:
                waits = [*self.before, *runs.values()]
            else:
                waits = [run for name, run in runs.items() if name in stage.after]
                waits += self.before if ENTRY in stage.after else []
            waits += self.launched
            runs[stage.name] = _Run(kernel, stage, local, waits, list(_tiles(kernel, stage)))
        self.runs += runs.values()
        self.before = [runs[name] for name in kernel.exits]

    def loop(self, loop: Loop, names: dict[str, Array], path: tuple[int, ...]) -> None:
        for i in range(loop.trip or self.steps):
            inner: dict[str, Array] = {}
            fixed: dict[str, Array] = {}
            for arg in loop.args:
                first = names[arg.outer[i % len(arg.outer)]]
                inner[arg.name] = first
                if arg.kind == "carried":
                    second = self.places.setdefault((path, arg), np.full_like(first, -1))
                    pair = [first, second if arg.buffers == 2 else first]
                    inner[arg.name], fixed[arg.next] = pair[i % 2], pair[(i + 1) % 2]
            self.body(loop.body, inner, fixed, path)
        names.update((outer, inner[name]) for name, outer in loop.yields)


def _tiles(kernel: Kernel, stage: Stage) -> Iterator[tuple[int, int]]:
    """(part, first row) of every tile."""
    for number, part in enumerate(stage.parts):
        op = part.ops[0]
        types = [kernel.types[name] for name in op.operands]
        rows = row_count(op.name, types, op.result.type if op.result else None)
        for first in range(0, rows, part.tile):
            yield number, first


# One tile ----------------------------------------------------------------------------------------


def _compute(run: _Run, number: int, first: int) -> None:
    names = dict(run.names)
    for op in run.stage.each:
        assert op.result is not None
        names[op.result.name] = np.asarray(_apply(op, names))  # memory of the thread's own
    part = run.stage.parts[number]
    for op in part.ops:
        if op.result:
            value = _apply(op, names)
            rows = _rows(op, run.kernel, first, part.tile)
            names[op.result.name][rows] = np.asarray(value)[rows]
        else:
            _store(op, names, first, part.tile)


def _rows(op: Op, kernel: Kernel, first: int, count: int) -> tuple[slice, ...]:
    """Where rows first … first + count of the result are."""
    kind = OPS[op.name].rows
    here = slice(first, first + count)
    if kind == "features":
        return slice(None), here
    if kind == "heads":
        assert op.result is not None
        tokens, width = op.result.type.shape
        assert tokens == count == 1, "the toys attend with one token, a head at a time"
        wide = width // kernel.types[op.operands[1]].shape[0]
        return slice(None), slice(first * wide, (first + 1) * wide)
    return (here,) if kind == "tokens" else (slice(None),)


def _store(op: Op, names: dict[str, Array], first: int, count: int) -> None:
    cache, width = names[op.operands[0]], names[op.operands[0]].shape[2]
    after = cache.copy()
    _apply(op, {**names, op.operands[0]: after})
    assert first % width == 0
    heads = slice(first // width, (first + count) // width)
    cache[heads] = after[heads]
