"""Executables: a program's machine code together with the memory it runs on.

`Weights` are packed once for a model; `Sequence` is the state of one conversation; an `Executable`
is one program, which runs on both. All programs of a model see weights and state in the same
places, so a prompt read by one program is continued by another.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.codegen import (
    chosen_formats,
    generate,
    item_launch,
    launch_names,
    stage_labels,
)
from hotloop.backends.cpu.packed import Packed, read_packed
from hotloop.backends.cpu.places import (
    constant_words,
    packed_weights,
    place_constants,
    place_states,
    place_weights,
    place_work,
)
from hotloop.backends.cpu.profile import Recorder
from hotloop.backends.cpu.team import Team
from hotloop.ir.graph import Graph
from hotloop.ir.program import Call, Program, calls
from hotloop.ir.types import TensorType
from hotloop.kernels.pack import matrix, pack, packed_bytes
from hotloop.kernels.tile import row_stride
from hotloop.lang import Module
from hotloop.lang.target import host
from hotloop.util import settings
from hotloop.util.debug import ASSEMBLY, LLVM, debug

Bytes = NDArray[np.uint8]
#: Progress of a long piece of work: (bytes done, bytes in all, what).
Progress = Callable[[int, int | None, str], None]


class Weights:
    """The weights of a model, packed for the kernels that read them.

    Where each lies is known at once, which is all that code needs of them; `fill` brings them.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.region = place_weights(graph)
        self.arena = Arena(self.region.nbytes, "the packed weights")

    def fill(
        self,
        source: Callable[[str], Bytes],
        threads: int,
        progress: Progress = lambda done, total, what: None,
        packed: Callable[[str], None] = lambda name: None,
        ready: Mapping[str, Packed] = MappingProxyType({}),
    ) -> "Weights":
        """Pack every weight into its place, and return these weights.

        `source` gives the file's bytes of a weight by its name in the graph, `packed` is told when
        they are no longer needed. Those in `ready` are read from a file that holds them packed.
        """
        graph, matrices = self._graph, packed_weights(self._graph)
        total, done, lock = self.region.nbytes, 0, threading.Lock()

        def count(nbytes: int) -> None:
            nonlocal done
            with lock:
                done += nbytes
                progress(min(done, total), total, "pack")

        def memory(name: str) -> Bytes:
            type, at = graph.types[name], self.region.offsets[name]
            nbytes = packed_bytes(matrix(type)) if name in matrices else type.nbytes
            return self.arena.data[at : at + nbytes]

        def place(name: str) -> None:
            type, data = graph.types[name], source(name)
            if name in matrices:
                pack(data, matrix(type), memory(name))
            else:
                memory(name)[:] = data
            packed(name)
            count(data.nbytes)

        names = sorted(self.region.offsets, key=lambda name: -graph.types[name].nbytes)
        with ThreadPoolExecutor(threads, initializer=_give_way) as pool:
            for _ in pool.map(place, (name for name in names if name not in ready)):
                pass
        places = {name: (graph.types[name], memory(name)) for name in names if name in ready}
        read_packed(ready, places, threads, count)
        return self


def _give_way() -> None:
    """Let the thread that compiles have a core first: a start waits for it longer.

    Linux has priorities for threads; elsewhere this would be the whole process's.
    """
    if sys.platform == "linux":
        os.nice(10)  # relative, so that it holds in a process that gives way itself


class SequenceState:
    """The state of one sequence: KV cache, token ring, control block."""

    def __init__(self, graph: Graph) -> None:
        self.region = place_states(graph)
        self.types = {state.name: state.type for state in graph.states}
        self.arena = Arena(self.region.nbytes, "the KV cache")

    def view(self, name: str) -> NDArray[np.generic]:
        """A state as an array over its memory (a cache in the layout of its kernels)."""
        type, at = self.types[name], self.region.offsets[name]
        assert type.format.numpy is not None
        return self.arena.data[at : at + type.nbytes].view(type.format.numpy).reshape(type.shape)


class Executable:
    """The machine code of one program, on a model's weights and a team's threads.

    It is compiled in a thread of its own, for which whoever needs it waits.

    With `profile_events`, every run notes when each thread passed through each stage; that many
    passes of a thread have room, and `recorder` has those of the last run.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        state: SequenceState,
        team: Team,
        *,
        profile_events: int = 0,
    ) -> None:
        self.program = program
        self.team = team
        self.state = state
        self._weights = weights
        self._places = place_work(program)
        target = host(settings.TARGET.get() == "portable")
        profiled = profile_events > 0
        regions = weights.region, state.region, self._places

        def trace() -> Module:
            return generate(program, *regions, target, profiled=profiled)

        debug(LLVM, lambda: str(trace()))
        debug(ASSEMBLY, lambda: jit.assembly(str(trace()), target))
        self.stages = stage_labels(program)
        self._names = launch_names(program)
        recipe = repr((program, regions, profiled))
        self._loading = jit.load_recipe(
            recipe, trace, target, program.name, tuple(dict.fromkeys(self._names))
        )
        self._work = Arena(self._places.nbytes, "intermediate values")
        self._scratch = Arena(self._places.scratch_bytes * team.threads, "the threads' scratch")
        self._context = np.zeros(shared.CONTEXT_WORDS, np.int64)
        self._context[shared.WEIGHTS] = weights.arena.address
        self._context[shared.STATE] = state.arena.address
        self._context[shared.WORK] = self._work.address
        self._context[shared.SCRATCH] = self._scratch.address
        self._count = self.view(program.count) if program.count else np.zeros(1, np.int32)
        self._context[shared.COUNT] = self._count.ctypes.data
        self.recorder = Recorder(team.threads, profile_events) if profile_events else None
        if self.recorder:
            self._context[shared.PROFILE] = self.recorder.address
        self._constant_places, self._constants = place_constants(program), constant_words(program)
        self._args: list[NDArray[np.uint64]] = []

    def wait(self) -> jit.Code:
        """The machine code, once it is compiled."""
        return self._loading.result()

    @cached_property
    def _launches(self) -> NDArray[np.uint64]:
        launches = np.zeros((len(self._names), 2), np.uint64)
        if self.program.launch == "program":
            launches[0, 0] = self.wait().address(self._names[0])
            return launches
        types = {weight.name: weight.type for weight in self.program.weights}
        for i, call in enumerate(calls(self.program.body)):
            given, made = (map(self._address, names) for names in (call.args, call.results))
            args = np.array([*given, *chosen_formats(call, types), *made], np.uint64)
            self._args.append(args)
            launches[i] = self.wait().address(item_launch(call.kernel)), args.ctypes.data
        return launches

    def _address(self, name: str) -> int:
        """The address of a name outside the loops."""
        for arena, region in (
            (self._weights.arena, self._weights.region),
            (self.state.arena, self.state.region),
        ):
            if name in region.offsets:
                return arena.address + region.offsets[name]
        if name in self._constant_places.offsets:
            return self._constants.ctypes.data + self._constant_places.offsets[name]
        return self._work.address + self._places.places[((), name)]

    @property
    def launches(self) -> int:
        """Launches in one run of the program."""
        return len(self._names)

    def run(self, count: int = 1, *, until_done: bool = False) -> None:
        """Run the program on the first `count` tokens of its step.

        A program with a `count` of its own says itself how many each further step has.
        With `until_done`, run it again and again until its output `until` is set; a program that
        loops over tokens does that by itself. Raises `HangError`.
        """
        self._count[0] = count
        done = 0
        if self.program.until:
            self.view(self.program.until)[:] = 0
            if until_done:
                done = self._address(self.program.until)
        if self.recorder:
            self.recorder.start()
        self.team.run(self._context.ctypes.data, self._launches, self.stages, done)
        if self.recorder:
            self.recorder.stop()

    def view(self, name: str) -> NDArray[np.generic]:
        """A value outside the loops as an array [T, N] or [N] over its memory."""
        return self._view(name, self.program.types[name])

    def _view(self, name: str, type: TensorType) -> NDArray[np.generic]:
        at = self._places.places[((), name)]
        dtype = type.format.numpy
        assert dtype is not None
        if type.format.name != "f32" or len(type.shape) < 2:
            return self._work.data[at : at + type.nbytes].view(dtype).reshape(type.shape)
        rows, width = type.shape
        stride = row_stride(width)
        data = self._work.data[at : at + rows * stride * dtype.itemsize]
        return data.view(dtype).reshape(rows, stride)[:, :width]

    def step_through(self, count: int = 1) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Run item by item, and give each float32 result when it is there (a copy).

        Only for programs whose items are launches of their own.
        """
        self._count[0] = count
        for i, item in enumerate(self.program.body):
            assert isinstance(item, Call)
            launch = self._launches[i : i + 1]
            self.team.run(self._context.ctypes.data, launch, self.stages)
            for name in item.results:
                if self.program.types[name].format.name in ("f32", "i32"):
                    yield name, self.view(name)[:count].copy()
