"""Run a graph or a program in NumPy, exactly as it says: the meaning of every level.

Memory is modelled as well as values, so that a wrong program gives wrong numbers: a carried
argument has one buffer or two alternating ones, a call's result has one buffer for all iterations,
and memory that nothing has written holds NaN (integers: the smallest). With `order`, the stages of
a kernel and the parts of a stage run in a random order among those that the program's edges allow,
so an edge that is missing shows.

Arrays have the dtype of their type; weights and 8-bit activations are float32, as the meanings of
the ops take them.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hotloop.ir.graph import Graph, Op
from hotloop.ir.ops import OPS, Array
from hotloop.ir.order import Path
from hotloop.ir.program import ENTRY, Call, Item, Kernel, Loop, Program, Stage
from hotloop.ir.types import TensorType
from hotloop.util.errors import UsageError

#: Called with a name and the value, after each op: `i=12 @layer %q`.
Trace = Callable[[str, Array], None]


def run_graph(
    graph: Graph, values: Mapping[str, Array], *, trace: Trace | None = None
) -> dict[str, Array]:
    """The outputs of one step. `values` has inputs, weights and states; states are written."""
    arrays = _declared(graph, values)
    for op in graph.ops:
        name = _compute(op, arrays, _fresh(op.result.type) if op.result else None)
        if trace:
            trace(f"%{name}", arrays[name])
    return {name: arrays[name] for name in graph.outputs}


def run_program(
    program: Program,
    values: Mapping[str, Array],
    *,
    steps: int | None = None,
    order: int | None = None,
    trace: Trace | None = None,
) -> dict[str, Array]:
    """The outputs of one run of `program`. `values` as for `run_graph`.

    An open loop runs until its `until` is not zero, or for `steps` iterations. `order` seeds the
    random order of stages and parts; without it they run in program order.
    """
    arrays = _declared(program, values)
    machine = _Machine(steps, None if order is None else random.Random(order), trace)
    machine.body(program.body, arrays, {}, (), "")
    return {name: arrays[name] for name in program.outputs}


@dataclass(frozen=True, eq=False)
class Bound:
    """What a run does at one point: an op on its arrays by name, or (`op` None) `memory` forgotten.

    An op writes `memory`, its result or the state that it changes.
    """

    op: Op | None
    arrays: dict[str, Array]
    memory: Array

    def value(self) -> Array | None:
        """What the op computes from what its arrays hold now; None where it only writes state."""
        assert self.op is not None
        return _meaning(self.op, self.arrays)


def bind(program: Program, values: Mapping[str, Array]) -> tuple[list[Bound], dict[str, Array]]:
    """What `run_program` would do, in order, without doing it; and the arrays of all outputs.

    For those who run the ops in another order, and at other times. No loop may be open-ended.
    """
    arrays = _declared(program, values)
    bound: list[Bound] = []

    def note(op: Op, arrays: dict[str, Array], result: Array | None) -> str:
        name = op.result.name if op.result else op.operands[OPS[op.name].writes[0]]
        bound.append(Bound(op, arrays, arrays[name]))
        return name

    machine = _Machine(
        0, None, None, execute=note, forget=lambda array: bound.append(Bound(None, {}, array))
    )
    machine.body(program.body, arrays, {}, (), "")
    return bound, {name: arrays[name] for name in program.outputs}


def _declared(thing: Graph | Program, values: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of everything that is declared; inputs are copied, states are not."""
    arrays: dict[str, Array] = {}
    weights = {weight.name for weight in thing.weights}
    if isinstance(thing, Program):
        for constant in thing.constants:
            name, dtype = constant.value.name, constant.value.type.format.numpy
            arrays[name] = np.asarray(constant.number, dtype)
    for value in thing.declared():
        if value.name in arrays:
            continue
        if value.name not in values:
            raise UsageError(f"There is no value for {value}.")
        array = values[value.name]
        dtype = np.dtype(np.float32) if value.name in weights else _dtype(value.type)
        if array.shape != value.type.shape or array.dtype != dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise UsageError(f"The value for {value} is {found}; expected {dtype} of that shape.")
        arrays[value.name] = array
    for value in thing.inputs:
        arrays[value.name] = arrays[value.name].copy()
    return arrays


def _dtype(type: TensorType) -> np.dtype:
    name, plain = type.format.name, type.format.numpy
    return np.dtype(np.float32) if plain is None or name == "bf16" else plain


def _fresh(type: TensorType) -> Array:
    array = np.empty(type.shape, _dtype(type))
    _forget(array)
    return array


def _forget(array: Array) -> None:
    """What memory holds before anything is written to it."""
    array.fill(np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).min)


def _compute(op: Op, arrays: dict[str, Array], result: Array | None) -> str:
    """Run one op, its result put into `result`; give the name of what it wrote."""
    value = _meaning(op, arrays)
    if op.result is None:
        return op.operands[OPS[op.name].writes[0]]
    assert result is not None
    result[...] = value
    arrays[op.result.name] = result
    return op.result.name


def _meaning(op: Op, arrays: Mapping[str, Array]) -> Array | None:
    attrs = {**dict(op.attrs), **{attr: arrays[name].item() for attr, name in op.scalars}}
    with np.errstate(all="ignore"):  # NaN and infinity are data here
        return OPS[op.name].meaning(*(arrays[name] for name in op.operands), **attrs)


@dataclass
class _Machine:
    """Runs a program; `places` has the buffers of results, by body and name."""

    steps: int | None
    random: random.Random | None
    trace: Trace | None
    places: dict[tuple[Path, str], Array] = field(default_factory=dict)
    execute: Callable[[Op, dict[str, Array], Array | None], str] = _compute
    forget: Callable[[Array], None] = _forget

    def body(
        self,
        items: tuple[Item, ...],
        arrays: dict[str, Array],
        fixed: Mapping[str, Array],
        path: Path,
        prefix: str,
    ) -> None:
        """Run the items of a body. `fixed` has the results whose buffers are given."""
        kernels = Counter(item.kernel for item in items if isinstance(item, Call))
        seen: Counter[Kernel] = Counter()
        for k, item in enumerate(items):
            if isinstance(item, Loop):
                self.loop(item, arrays, (*path, k), prefix)
                continue
            number = f"[{seen[item.kernel]}]" if kernels[item.kernel] > 1 else ""
            seen[item.kernel] += 1
            self.call(item, arrays, fixed, path, f"{prefix}@{item.kernel.name}{number}")

    # Loops ---------------------------------------------------------------------------------------

    def loop(self, loop: Loop, outside: dict[str, Array], path: Path, prefix: str) -> None:
        second = {
            arg.name: self.place(path, f"{arg.name} (second buffer)", outside[arg.outer[0]])
            for arg in loop.args
            if arg.buffers == 2
        }
        for buffer in second.values():
            self.forget(buffer)
        for i in self.iterations(loop):
            arrays: dict[str, Array] = {}
            fixed: dict[str, Array] = {}
            for arg in loop.args:
                first = outside[arg.outer[i if len(arg.outer) > 1 else 0]]
                alternate = [first, second.get(arg.name, first)]
                arrays[arg.name] = alternate[i % 2] if arg.kind == "carried" else first
                if arg.kind == "carried":
                    fixed[arg.next] = alternate[(i + 1) % 2]
            self.body(loop.body, arrays, fixed, path, f"{prefix}{loop.index}={i} ")
            for name, outer in loop.yields:
                outside[outer] = arrays[name]
            if loop.until and arrays[loop.until].any():
                return

    def iterations(self, loop: Loop) -> Iterator[int]:
        count = self.steps if loop.trip is None else loop.trip
        i = 0
        while count is None or i < count:
            yield i
            i += 1

    def place(self, path: Path, name: str, like: Array) -> Array:
        return self.places.setdefault((path, name), np.empty_like(like))

    # Calls ---------------------------------------------------------------------------------------

    def call(
        self,
        call: Call,
        outside: dict[str, Array],
        fixed: Mapping[str, Array],
        path: Path,
        prefix: str,
    ) -> None:
        kernel = call.kernel
        params = (param.name for param in kernel.params)
        arrays = {name: outside[arg] for name, arg in zip(params, call.args, strict=True)}
        arguments = {id(array) for array in arrays.values()}
        for name, result in zip(call.results, kernel.results, strict=True):
            place = self.places.setdefault((path, name), _fresh(kernel.types[result]))
            outside[name] = arrays[result] = fixed.get(name, place)
            if id(arrays[result]) not in arguments:  # else it is written in place
                self.forget(arrays[result])
        for op in kernel.ops:
            if op.result and op.result.name not in arrays:
                arrays[op.result.name] = _fresh(op.result.type)
        for stage in self.stages(kernel):
            for ops in (stage.each, *self.parts(stage)):
                for op in ops:
                    name = self.execute(op, arrays, arrays[op.result.name] if op.result else None)
                    if self.trace:
                        self.trace(f"{prefix} %{name}", arrays[name])

    def stages(self, kernel: Kernel) -> Iterator[Stage]:
        """In program order, or in a random one that keeps every edge."""
        if self.random is None:
            yield from kernel.stages
            return
        waiting = list(kernel.stages)
        while waiting:
            left = {stage.name for stage in waiting}
            ready = [
                stage
                for stage in waiting
                if not (left & {*stage.after} - {ENTRY})
                and not (stage.barrier and stage is not waiting[0])
            ]
            stage = self.random.choice(ready)
            waiting.remove(stage)
            yield stage

    def parts(self, stage: Stage) -> list[tuple[Op, ...]]:
        parts = [part.ops for part in stage.parts]
        if self.random is not None:
            self.random.shuffle(parts)
        return parts
