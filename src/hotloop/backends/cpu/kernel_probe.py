"""What kernels cost by themselves: a core's time where all is in its cache, a team's from memory.

`OpProbe` runs the tile function of an op again and again on one thread. That leaves out memory,
other threads, and what a program does between its ops. `StreamProbe` runs a matrix product over as
much memory as a model has, claimed tile by tile as a program does: how fast weights of a format
arrive where so many tokens are computed with each. From such parts a cost model puts a token's time
together (`hotloop.predict.cpu`).
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.codegen import LAUNCH, first_sync
from hotloop.backends.cpu.places import PACKED
from hotloop.backends.cpu.sync import define_sync, word
from hotloop.backends.cpu.team import Team
from hotloop.ir.ops import GROUP
from hotloop.ir.types import FORMATS, TensorType, tensor
from hotloop.kernels.pack import group_bytes, matrix, packed_bytes
from hotloop.kernels.tile import KERNELS, OpSpec, buffer_bytes, define
from hotloop.lang import (
    Module,
    Pointer,
    Value,
    Var,
    call,
    constant,
    function,
    i64,
    loop,
    ptr,
    ret,
    while_,
)
from hotloop.lang.target import host
from hotloop.machine.machine import Machine
from hotloop.util import settings

#: Weights that an `OpProbe` reads: a core's second-level cache has room for more.
CACHED_BYTES = 192 * 1024
#: Bytes of an operand that an `OpProbe` reads at most; the rest of it stays untouched.
TOUCHED = 8 << 20
#: A number in every format: 1.06 as float16, 0.0115 as float32 and bfloat16, 60 as int8.
FILL = 0x3C
#: Seconds that a measurement takes at least.
OP_SECONDS, STREAM_SECONDS = 1e-4, 2e-2
#: Measurements of an op of which the shortest counts: the others were interrupted.
REPEATS = 3
#: Pages of the cache that each token of a stream sees, at most.
PAGES = 4


@dataclass(frozen=True)
class OpCase:
    """An op whose tokens are all at `position` of their sequences."""

    spec: OpSpec
    position: int

    @property
    def count(self) -> int:
        """Tokens of the step."""
        result = self.spec.result
        return (result or self.spec.operands[1]).shape[0]

    @property
    def probed_rows(self) -> int:
        """Rows whose weights fit in a core's cache."""
        if self.spec.name not in PACKED or self.spec.name == "embed":
            return self.spec.rows
        fitting = CACHED_BYTES // group_bytes(matrix(self.spec.operands[1])) * GROUP
        return min(self.spec.rows, max(2 * GROUP, fitting))


class OpProbe:
    """Ops on the calling thread."""

    def __init__(self, cases: Sequence[OpCase]) -> None:
        module = Module("op_probe", host(settings.TARGET.get() == "portable"))
        names = [f"probe_{i}" for i in range(len(cases))]
        for name, case in zip(names, cases, strict=True):
            _define_op(module, name, case)
        self._code = jit.load(module, tuple(names))
        addresses = map(self._code.address, names)
        self._sites = [_Site(*each) for each in zip(cases, addresses, strict=True)]

    def seconds(self) -> list[float]:
        """One measurement: seconds of a row of each of the cases."""
        return [site.seconds() for site in self._sites]


class _Site:
    """A case with memory of its own."""

    def __init__(self, case: OpCase, address: int) -> None:
        spec = case.spec
        self._rows = case.probed_rows
        operands = [_operand(case, i) for i in range(len(spec.operands))]
        result = [Arena(buffer_bytes(spec.result), "a probe's result")] if spec.result else []
        scratch = Arena(max(1, KERNELS[spec.name].scratch(spec)), "a probe's scratch")
        self._memory = [*operands, *result, scratch]
        self._scalars = np.zeros(1, np.int32)
        addresses = [arena.address for arena in self._memory]
        addresses[len(operands) : len(operands)] = [self._scalars.ctypes.data] * len(spec.scalars)
        self._args = np.array(addresses, np.uint64)
        signature = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
        self._run: Callable[[int, int], int] = signature(address)
        self._times = 1
        self._elapsed()  # memory that is touched for the first time is not what is to be measured
        while min(self._elapsed() for _ in range(REPEATS)) < OP_SECONDS:
            self._times *= 2

    def _elapsed(self) -> float:
        started = time.perf_counter()
        self._run(self._args.ctypes.data, self._times)
        return time.perf_counter() - started

    def seconds(self) -> float:
        return min(self._elapsed() for _ in range(REPEATS)) / self._times / self._rows


def _operand(case: OpCase, i: int) -> Arena:
    """Memory of operand `i`: positions as the case says, ids and pages 0, else small numbers."""
    type = case.spec.operands[i]
    packed = case.spec.name in PACKED and i == 1
    arena = Arena(packed_bytes(matrix(type)) if packed else buffer_bytes(type), "a probe's operand")
    if type.format.name == "i32":
        is_position = len(type.shape) == 1 and case.spec.name != "embed"
        words: NDArray[np.int32] = arena.data.view(np.int32)
        words[:] = case.position if is_position else 0
    elif type.format.name != "control":
        arena.data[:TOUCHED] = FILL
    return arena


def _define_op(module: Module, name: str, case: OpCase) -> None:
    """args: the addresses of operands, scalars, result, scratch; how often."""
    spec = case.spec
    tile = define(module, spec, f"tile_{name}")
    count = len(spec.operands) + len(spec.scalars) + (spec.result is not None)
    with function(module, name, [("args", ptr), ("times", i64)], i64, exported=True) as arguments:
        args, times = arguments
        *addresses, scratch = [word(args, 8 * k).load_pointer() for k in range(count + 1)]
        rows = [constant(0, i64), constant(case.probed_rows, i64)]
        for _ in loop(times):
            call(tile, [*addresses, *rows, constant(case.count, i64), scratch])
        ret(0)


@dataclass(frozen=True)
class ProductCase:
    """Matrices of rows of `columns`, read once for `count` tokens; formats by their names."""

    weight: str
    activation: str
    columns: int
    count: int


@dataclass(frozen=True)
class AttentionCase:
    """An `attend`, each of its tokens over some pages of its own."""

    spec: OpSpec


StreamCase = ProductCase | AttentionCase


class StreamProbe:
    """A kernel on all threads of `team` that reads `memory`, whatever it holds, again and again.

    That should be what a model reads for a token, since a part of it may stay in a cache. Memory
    that is too small is not used.
    """

    def __init__(self, case: StreamCase, memory: Arena, team: Team) -> None:
        room = len(memory.data)
        stream = _product(case, room) if isinstance(case, ProductCase) else _attention(case, room)
        self._stream = stream
        self.team = team
        spec = stream.spec
        module = Module("stream_probe", host(settings.TARGET.get() == "portable"))
        _define_stream(module, stream)
        self._code = jit.load(module, ("launch",))
        if stream.layer_bytes > len(memory.data):
            memory = Arena(stream.layer_bytes, "a probe's weights")
        scratch = max(64, KERNELS[spec.name].scratch(spec))
        assert spec.result is not None
        self._memory = [
            memory if i in stream.streamed else Arena(buffer_bytes(type), "a probe's operand")
            for i, type in enumerate(spec.operands)
        ]
        self._memory.append(Arena(buffer_bytes(spec.result), "a probe's result"))
        self._memory.append(Arena(scratch * team.threads, "a probe's scratch"))
        for i, type in enumerate(spec.operands):
            if i not in stream.streamed:
                _fill(self._memory[i], type, stream.position)
        scalars = np.zeros(1, np.int32)
        addresses = [arena.address for arena in self._memory]
        addresses[len(spec.operands) : len(spec.operands)] = [scalars.ctypes.data] * len(
            spec.scalars
        )
        self._args = np.array([0, scratch, *addresses], np.uint64)
        self._scalars = scalars
        self._launches = np.array([[self._code.address("launch"), self._args.ctypes.data]], "u8")
        self._context = np.zeros(shared.CONTEXT_WORDS, np.int64)
        self._layers = stream.layers
        self._seconds()
        self._layers = max(1, round(STREAM_SECONDS / self._seconds() * stream.layers))

    def _seconds(self) -> float:
        self._args[0] = self._layers
        started = time.perf_counter()
        self.team.run(self._context.ctypes.data, self._launches, ("probe",))
        return time.perf_counter() - started

    def rate(self) -> float:
        """One measurement, after one that wakes what sleeps: bytes per second that a step reads.

        Of weights those that files store.
        """
        self._seconds()
        return self._stream.nbytes * self._layers / self._seconds()


@dataclass(frozen=True)
class _Stream:
    """An op whose operands `streamed` lie in memory that is read in `layers`.

    Of a layer's `layer_bytes`, an operand has those from its offset on; `nbytes` of them count.
    """

    spec: OpSpec
    tiles: int
    tile_rows: int
    streamed: Mapping[int, int]
    layers: int
    layer_bytes: int
    nbytes: int
    position: int = 0


def _product(case: ProductCase, room: int) -> _Stream:
    """One matrix that takes all the room."""
    format_ = FORMATS[case.weight]
    group = group_bytes(TensorType(format_, (GROUP, case.columns)))
    tile = max(2, Machine.tile_bytes // group // 2 * 2)
    tiles = max(1, room // group // tile)
    weight = TensorType(format_, (tiles * tile * GROUP, case.columns))
    x = tensor(case.activation, case.count, case.columns)
    spec = OpSpec("linear", (x, weight), tensor("f32", case.count, weight.shape[0]))
    return _Stream(spec, tiles, tile * GROUP, {1: 0}, 1, packed_bytes(weight), weight.nbytes)


def _attention(case: AttentionCase, room: int) -> _Stream:
    """As many caches as there is room for, of a few pages for each token."""
    cache, pages = case.spec.operands[1], case.spec.operands[4]
    tokens, page = case.spec.operands[0].shape[0], cache.shape[2]
    few = min(PAGES, pages.shape[1])
    half = cache.nbytes // cache.shape[0] * few * tokens
    spec, rows = case.spec, case.spec.rows
    layers = max(1, room // (2 * half))
    return _Stream(spec, rows, 1, {1: 0, 2: half}, layers, 2 * half, 2 * half, few * page - 1)


def _fill(memory: Arena, type: TensorType, position: int) -> None:
    """Numbers; positions; pages, each token's after those of the token before."""
    if type.format.name != "i32":
        memory.data[:] = FILL
        return
    words: NDArray[np.int32] = memory.data.view(np.int32)
    if len(type.shape) == 1:
        words[:] = position
        return
    few = min(PAGES, type.shape[1])
    for token in range(type.shape[0]):
        at = token * type.shape[1]
        words[at : at + few] = np.arange(token * few, (token + 1) * few)


def _define_stream(module: Module, stream: _Stream) -> None:
    """args: layers to run, a thread's scratch bytes, operands, scalars, result, scratch."""
    spec = stream.spec
    sync = define_sync(module)
    tile_function = define(module, spec, "tile")
    with function(module, "launch", LAUNCH, i64, exported=True) as (_, team, tid, args):
        assert isinstance(team, Pointer)
        others = len(spec.operands) + len(spec.scalars) + 1
        *given, scratch = [word(args, 16 + 8 * k).load_pointer() for k in range(others + 1)]
        mine = scratch.at(tid * word(args, 8).load())
        claims = team.at(first_sync(team) + shared.CLAIMS)
        count = constant(spec.operands[0].shape[0], i64)

        def layer(epoch: Value) -> None:
            shift = epoch % stream.layers * stream.layer_bytes
            operands = [
                each.at(shift + stream.streamed[i]) if i in stream.streamed else each
                for i, each in enumerate(given)
            ]
            claim = [claims, epoch, constant(stream.tiles, i64), team, tid]
            tile = Var(call(sync.claim, claim))
            for _ in while_(lambda: tile >= 0):
                low = tile * stream.tile_rows
                call(tile_function, [*operands, low, low + stream.tile_rows, count, mine])
                tile.set(call(sync.claim, claim))

        for epoch in loop(word(args, 0).load()):
            layer(epoch)
        ret(0)
