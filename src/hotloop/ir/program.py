"""The program: kernels, calls of kernels, and loops over calls.

    program  := declaration… constant… item… output…   (declarations as in `hotloop.ir.graph`)
    item     := call | loop
    call     := results = call @kernel(arguments)
    loop     := loop %i < trip { argument… item… yield… }
    argument := invariant | stacked | variant | carried | state
    kernel   := kernel @name(params) -> (results) { stage… }
    stage    := stage %name (after %stage… | barrier) { each op… part… }
    part     := tile rows { op… }

A *kernel* is a fused group of ops. It is cut into *stages*: a stage starts when the stages it names
in `after` are complete, or with a team barrier. Its *parts* are computed in tiles that any thread
may claim; the ops of one part run one after another on the same tile. The ops under `each` are
computed by every thread for itself, into memory of its own.

Names inside a loop are those of its arguments and of what its body defines, nothing else.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal
from weakref import WeakValueDictionary

from hotloop.ir.graph import Op, Value
from hotloop.ir.ops import OPS
from hotloop.ir.types import TensorType, variant

#: In `Stage.after`: everything that comes before the call.
ENTRY = "entry"

ArgKind = Literal["invariant", "stacked", "variant", "carried", "state"]
Launch = Literal["item", "program"]


@dataclass(frozen=True)
class Part:
    """Ops that share tiles of `tile` rows: a tile runs through all of them on one thread."""

    ops: tuple[Op, ...]
    tile: int


@dataclass(frozen=True)
class Stage:
    """What lies between two synchronisation points of a kernel.

    With `barrier`, it starts when every thread has finished everything before; else when the
    stages named in `after` are complete (`ENTRY`: what precedes the call). With `prefetch`, a
    thread claims its first tile and asks for its weights before it waits.
    """

    name: str
    after: tuple[str, ...]
    each: tuple[Op, ...]
    parts: tuple[Part, ...]
    barrier: bool = False
    prefetch: bool = False

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.each + tuple(op for part in self.parts for op in part.ops)


@dataclass(frozen=True)
class Kernel:
    """A fused group of ops with formal parameters; make one with `Kernel.of`.

    Kernels are interned: equal ones are the same object, so "same kernel?" is `is`.
    """

    name: str
    params: tuple[Value, ...]
    results: tuple[str, ...]
    stages: tuple[Stage, ...]

    @staticmethod
    def of(
        name: str,
        params: tuple[Value, ...],
        results: tuple[str, ...],
        stages: tuple[Stage, ...],
    ) -> "Kernel":
        kernel = Kernel(name, params, results, stages)
        return _kernels.setdefault(kernel, kernel)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.params, self.results, self.stages))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for stage in self.stages for op in stage.ops)

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The type of every param and of every value that the body defines."""
        types = {param.name: param.type for param in self.params}
        types.update((op.result.name, op.result.type) for op in self.ops if op.result)
        return types

    @cached_property
    def written(self) -> frozenset[str]:
        """Params that the body writes in place."""
        names = {op.operands[i] for op in self.ops for i in OPS[op.name].writes}
        return frozenset(param.name for param in self.params if param.name in names)

    @cached_property
    def exits(self) -> tuple[str, ...]:
        """Stages that no other stage waits for: when they are complete, so is the call."""
        awaited = {name for stage in self.stages for name in stage.after}
        last_barrier = max((i for i, stage in enumerate(self.stages) if stage.barrier), default=0)
        awaited.update(stage.name for stage in self.stages[:last_barrier])
        return tuple(stage.name for stage in self.stages if stage.name not in awaited)


_kernels: WeakValueDictionary[Kernel, Kernel] = WeakValueDictionary()


@dataclass(frozen=True)
class Call:
    """A kernel with its actual arguments; `results` names what it defines."""

    kernel: Kernel
    args: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def uses(self) -> tuple[str, ...]:
        return self.args

    @property
    def defines(self) -> tuple[str, ...]:
        return self.results

    @property
    def written(self) -> frozenset[int]:
        """Positions in `uses` that are written in place."""
        params = enumerate(self.kernel.params)
        return frozenset(i for i, param in params if param.name in self.kernel.written)

    @property
    def shape(self) -> "Call":
        """The call with its names blanked: equal shapes differ in arguments only."""
        return self.rename(lambda name: "")

    def rename(self, new: Callable[[str], str]) -> "Call":
        args, results = map(new, self.args), map(new, self.results)
        return replace(self, args=tuple(args), results=tuple(results))


@dataclass(frozen=True)
class LoopArg:
    """An argument of a loop, `name` inside, and what it is outside.

    invariant   `outer` holds the one outside name
    stacked     `outer` holds a name for each iteration
    variant     the same, but of weights in different formats; inside, its format is one of them
    carried     `outer` holds the initial value; `next` is the body's value for the next iteration.
                With `buffers` = 2 the two alternate between two buffers, with 1 they share one.
    state       like invariant (one name) or stacked (one for each iteration), and written in place
    """

    kind: ArgKind
    name: str
    outer: tuple[str, ...]
    next: str = ""
    buffers: int = 1


@dataclass(frozen=True)
class Loop:
    """A repeated region: `trip` times, or (None) until the body's value `until` is not zero.

    `yields` are (name in the body, name outside): what the last iteration leaves behind.
    """

    index: str
    trip: int | None
    args: tuple[LoopArg, ...]
    body: tuple["Item", ...]
    yields: tuple[tuple[str, str], ...]
    until: str = ""

    @property
    def uses(self) -> tuple[str, ...]:
        return tuple(name for arg in self.args for name in arg.outer)

    @property
    def defines(self) -> tuple[str, ...]:
        return tuple(outer for _, outer in self.yields)

    @property
    def written(self) -> frozenset[int]:
        kinds = [arg.kind for arg in self.args for _ in arg.outer]
        return frozenset(i for i, kind in enumerate(kinds) if kind == "state")

    @property
    def shape(self) -> "Loop":
        return self.rename(lambda name: "")

    def rename(self, new: Callable[[str], str]) -> "Loop":
        """Other names outside; the body stays."""
        args = tuple(replace(arg, outer=tuple(map(new, arg.outer))) for arg in self.args)
        yields = tuple((inner, new(outer)) for inner, outer in self.yields)
        return replace(self, args=args, yields=yields)

    def stacks(self) -> Iterator[LoopArg]:
        """Arguments with another buffer in each iteration."""
        return (arg for arg in self.args if arg.kind != "carried" and len(arg.outer) > 1)


Item = Call | Loop


@dataclass(frozen=True)
class Constant:
    """A number that kernels take as an argument; its type is a scalar, i32[] or f32[]."""

    value: Value
    number: int | float


@dataclass(frozen=True)
class Program:
    """The ordered calls and loops of one step, or of a whole generation.

    `launch` says how the host hands it to the machine: each item by itself, or all at once.
    `until` is the output that ends a generation when it is not zero, `count` the one that says how
    many tokens the next step has.
    """

    name: str
    inputs: tuple[Value, ...]
    weights: tuple[Value, ...]
    states: tuple[Value, ...]
    body: tuple[Item, ...]
    outputs: tuple[str, ...]
    feedback: tuple[tuple[str, str], ...] = ()
    until: str = ""
    launch: Launch = "item"
    constants: tuple[Constant, ...] = ()
    count: str = ""

    def declared(self) -> Iterator[Value]:
        yield from self.inputs
        yield from self.weights
        yield from self.states
        yield from (constant.value for constant in self.constants)

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The type of every name outside the loops."""
        types = {value.name: value.type for value in self.declared()}
        define_types(self.body, types)
        return types

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel once, in the order of first call."""
        return tuple(dict.fromkeys(call.kernel for call in calls(self.body)))


def calls(body: tuple[Item, ...]) -> Iterator[Call]:
    """Every call, once for each place where it stands."""
    for item in body:
        if isinstance(item, Call):
            yield item
        else:
            yield from calls(item.body)


def define_types(body: tuple[Item, ...], types: dict[str, TensorType]) -> None:
    """Add to `types` the names that `body` defines in its own scope."""
    for item in body:
        if isinstance(item, Call):
            for name, result in zip(item.results, item.kernel.results, strict=True):
                types[name] = item.kernel.types[result]
        else:
            inner = loop_types(item, types)
            types.update((outer, inner[name]) for name, outer in item.yields)


def loop_types(loop: Loop, outside: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The type of every name inside `loop`."""
    types = {arg.name: argument_type(arg, outside) for arg in loop.args}
    define_types(loop.body, types)
    return types


def argument_type(arg: LoopArg, outside: Mapping[str, TensorType]) -> TensorType:
    """The type of a loop argument inside the loop."""
    first = outside[arg.outer[0]]
    if arg.kind != "variant":
        return first
    return TensorType(variant(outside[name].format for name in arg.outer), first.shape)


def map_kernels(program: Program, change: Callable[[Kernel], Kernel]) -> Program:
    """The program with every kernel replaced by `change(kernel)`; itself if none changes."""
    changed = {kernel: change(kernel) for kernel in program.kernels}
    if all(new is old for old, new in changed.items()):
        return program

    def items(body: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(
            replace(item, kernel=changed[item.kernel])
            if isinstance(item, Call)
            else replace(item, body=items(item.body))
            for item in body
        )

    return replace(program, body=items(program.body))


def count_calls(body: tuple[Item, ...]) -> int:
    """Calls that one step makes, as the paper counts them: a loop over layers is one call.

    An open-ended loop is counted by its body, which is a step.
    """
    return sum(
        count_calls(item.body) if isinstance(item, Loop) and item.trip is None else 1
        for item in body
    )
