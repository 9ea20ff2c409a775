"""Places: where every value of a program lives in memory.

Three regions, whose base addresses a launch finds in its context:

- *weights*, packed, in the order in which a step reads them; the same for all programs of a model;
- *state*: KV cache, token ring, control block; one for each sequence;
- *work*: inputs, results of calls, and the values inside kernels. In a program whose items are
  launches of their own, results share memory when their lives do not overlap.

and each thread's *scratch* for what it computes for itself.

Names that the program says are one value share a place: what a loop argument is called inside and
outside, a carried value and its next one where they have one buffer, an output and the input that
it feeds. A carried value with two buffers has two places, which alternate.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.graph import Graph, Op
from hotloop.ir.program import Call, Item, Kernel, Program, loop_types
from hotloop.ir.types import TensorType
from hotloop.kernels.pack import matrix, packed_bytes
from hotloop.kernels.tile import KERNELS, OpSpec, buffer_bytes, round_up
from hotloop.util.errors import ProgramError

ALIGN = 64
SCALAR_BYTES = 4
#: Ops whose second operand is a packed weight.
PACKED = ("linear", "embed", "expert_linear", "expert_mix")
Scope = tuple[int, ...]
"""The loops around a name, as positions in the bodies; () for the program itself."""
Key = tuple[Scope, str]


@dataclass
class Region:
    """A region under construction: the offset in bytes of each thing in it."""

    nbytes: int = 0
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, nbytes: int) -> None:
        self.offsets[name] = self.nbytes
        self.nbytes += round_up(max(nbytes, 1), ALIGN)


@dataclass(frozen=True)
class Work:
    """The work region.

    `places` has the offset of each name, `second` that of the other buffer of a carried value.
    `inside` and `scratch` have, for each kernel, the offsets of the values made in its parts and
    by each thread for itself; "" in `scratch` is what the tiles themselves need.
    """

    nbytes: int
    places: dict[Key, int]
    second: dict[Key, int]
    inside: dict[Kernel, dict[str, int]]
    scratch: dict[Kernel, dict[str, int]]
    scratch_bytes: int


def op_spec(op: Op, types: dict[str, TensorType]) -> OpSpec:
    """What the op's tile function is specialised on."""
    operands = tuple(types[name] for name in op.operands)
    scalars = tuple(attr for attr, _ in op.scalars)
    return OpSpec(op.name, operands, op.result.type if op.result else None, op.attrs, scalars)


def packed_weights(graph: Graph) -> set[str]:
    """Weights that kernels read in the packed layout; the others are plain."""
    return {op.operands[1] for op in graph.ops if op.name in PACKED}


def place_weights(graph: Graph) -> Region:
    """Weights that several ops share first, then the others in the order of their use.

    So the weights of a layer follow each other, and those of the next layer follow them.
    """
    uses = dict.fromkeys((weight.name for weight in graph.weights), 0)
    order = [name for op in graph.ops for name in op.operands if name in uses]
    for name in order:
        uses[name] += 1
    packed = packed_weights(graph)
    region = Region()
    for name in sorted(dict.fromkeys(order), key=lambda name: uses[name] == 1):
        type = graph.types[name]
        region.add(name, packed_bytes(matrix(type)) if name in packed else type.nbytes)
    return region


def place_constants(program: Program) -> Region:
    """The constants, one after the other."""
    region = Region()
    for i, constant in enumerate(program.constants):
        region.offsets[constant.value.name] = i * SCALAR_BYTES
    region.nbytes = len(program.constants) * SCALAR_BYTES
    return region


def constant_words(program: Program) -> NDArray[np.int32]:
    """The constants' numbers as they lie in memory (`place_constants`)."""
    words = np.zeros(len(program.constants), np.int32)
    for i, constant in enumerate(program.constants):
        dtype = constant.value.type.format.numpy
        assert dtype is not None
        words[i] = np.array(constant.number, dtype).view(np.int32)
    return words


def place_states(graph: Graph) -> Region:
    region = Region()
    for state in graph.states:
        region.add(state.name, buffer_bytes(state.type))
    return region


def place_work(program: Program) -> Work:
    """Lay out the work region of `program`."""
    same = _Same()
    sizes: dict[Key, int] = {}
    for value in program.inputs:
        sizes[((), value.name)] = buffer_bytes(value.type)
    _collect(program.body, (), dict(program.types), same, sizes)
    for source, target in program.feedback:
        same.join(((), source), ((), target))
    lives = _lives(program, same) if program.launch == "item" else None
    region = Region()
    places = _allocate(region, sizes, same, lives)
    second = {key: places[following] for key, following in same.second.items()}
    inside, scratch, largest = _kernels(program, region)
    return Work(region.nbytes, places, second, inside, scratch, largest)


class _Same:
    """Which keys are one value (a union-find)."""

    def __init__(self) -> None:
        self.parent: dict[Key, Key] = {}
        self.second: dict[Key, Key] = {}

    def find(self, key: Key) -> Key:
        while key in self.parent:
            key = self.parent[key]
        return key

    def join(self, key: Key, other: Key) -> None:
        a, b = self.find(key), self.find(other)
        if a != b:
            self.parent[a] = b


def _collect(
    body: tuple[Item, ...],
    scope: Scope,
    types: dict[str, TensorType],
    same: _Same,
    sizes: dict[Key, int],
) -> None:
    """Sizes of all results, and which names are one value."""
    for i, item in enumerate(body):
        if isinstance(item, Call):
            for name, result in zip(item.results, item.kernel.results, strict=True):
                sizes[(scope, name)] = buffer_bytes(item.kernel.types[result])
            continue
        inner = (*scope, i)
        _collect(item.body, inner, loop_types(item, types), same, sizes)
        for arg in item.args:
            if len(arg.outer) == 1:
                same.join((inner, arg.name), (scope, arg.outer[0]))
            if arg.kind == "carried" and arg.buffers == 1:
                same.join((inner, arg.next), (scope, arg.outer[0]))
        alternating = {arg.next: arg for arg in item.args if arg.buffers == 2}
        for name, outer in item.yields:
            arg_of = alternating.get(name)
            if arg_of is not None and item.trip is None:
                raise ProgramError(
                    f"%{arg_of.name} of loop %{item.index} alternates between two buffers, and the "
                    f"last one depends on how often the loop runs; give it one buffer."
                )
            # After an even number of iterations the last value is back in the first buffer.
            even = arg_of is not None and (item.trip or 0) % 2 == 0
            same.join((scope, outer), (inner, arg_of.name if arg_of and even else name))
        for name, arg in alternating.items():
            same.second[(inner, arg.name)] = (inner, name)


def _add(region: Region, nbytes: int) -> int:
    at = region.nbytes
    region.nbytes += round_up(max(nbytes, 1), ALIGN)
    return at


def _allocate(
    region: Region,
    sizes: dict[Key, int],
    same: _Same,
    lives: dict[Key, tuple[int, int]] | None,
) -> dict[Key, int]:
    """Offsets of all keys; with `lives`, first fit among what is free by then."""
    roots: dict[Key, int] = {}
    for key, nbytes in sizes.items():
        root = same.find(key)
        roots[root] = max(nbytes, roots.get(root, 0))
    placed: dict[Key, int] = {}
    if lives is None:
        for root, nbytes in roots.items():
            placed[root] = _add(region, nbytes)
    else:
        free: list[tuple[int, int]] = []  # (bytes, offset)
        ending: list[tuple[int, int, int]] = []  # (last use, bytes, offset)
        for root in sorted(roots, key=lambda root: lives[root][0]):
            born, dies = lives[root]
            free += [(size, at) for last, size, at in ending if last < born]
            ending = [entry for entry in ending if entry[0] >= born]
            fit = min((entry for entry in free if entry[0] >= roots[root]), default=None)
            if fit is None:
                fit = (roots[root], _add(region, roots[root]))
            else:
                free.remove(fit)
            placed[root] = fit[1]
            ending.append((dies, *fit))
    keys = dict.fromkeys((*sizes, *same.parent))  # in an order that is the same in every process
    return {key: placed[same.find(key)] for key in keys if same.find(key) in placed}


def _lives(program: Program, same: _Same) -> dict[Key, tuple[int, int]]:
    """First definition and last use of each value, counted in items; inputs and outputs stay."""
    always = (-1, len(program.body))
    lives: dict[Key, tuple[int, int]] = {}
    for value in program.inputs:
        lives[same.find(((), value.name))] = always
    for i, item in enumerate(program.body):
        for name in (*item.defines, *item.uses):
            root = same.find(((), name))
            born, dies = lives.get(root, (i, i))
            lives[root] = (born, max(dies, i))
    for name in program.outputs:
        lives[same.find(((), name))] = always
    return lives


def _kernels(
    program: Program, region: Region
) -> tuple[dict[Kernel, dict[str, int]], dict[Kernel, dict[str, int]], int]:
    """Places inside kernels: shared values in `region`, private ones in a thread's scratch."""
    inside: dict[Kernel, dict[str, int]] = {}
    scratch: dict[Kernel, dict[str, int]] = {}
    largest = 0
    for kernel in program.kernels:
        private = Region()
        shared: dict[str, int] = {}
        for stage in kernel.stages:
            for op in stage.each:
                if op.result and op.result.name not in private.offsets:
                    private.add(op.result.name, buffer_bytes(op.result.type))
            for op in (op for part in stage.parts for op in part.ops):
                if op.result and op.result.name not in kernel.results:
                    shared[op.result.name] = _add(region, buffer_bytes(op.result.type))
        private.add("", max(_tile_scratch(kernel)))
        inside[kernel], scratch[kernel] = shared, private.offsets
        largest = max(largest, private.nbytes)
    return inside, scratch, largest


def _tile_scratch(kernel: Kernel) -> Iterator[int]:
    for op in kernel.ops:
        for spec in op_spec(op, kernel.types).cases:
            yield KERNELS[op.name].scratch(spec)
