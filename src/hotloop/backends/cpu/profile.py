"""Time stamps of stages: what a profiled launch writes, and what Python reads afterwards.

Each thread writes one *event* for each of its passes through a stage, with plain stores, into a
buffer of its own: a cache line that no other thread touches. A thread that has filled its buffer
goes on writing to the line behind it, and counts on, so that the loss is noticed.

The clock is the CPU's own counter: `rdtsc` on x86, `cntvct_el0` on AArch64. Both run at a constant
rate and agree between cores on the machines of today; the rate is measured against the system's
monotonic clock around each launch. Reading it takes some ten nanoseconds and orders nothing: a
stamp may be early by what the CPU has in flight, about a tenth of a microsecond.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.sync import word
from hotloop.lang import Module, Pointer, Value, function, i64, intrinsic, minimum, ret
from hotloop.lang.target import host
from hotloop.lang.trace import current
from hotloop.util.errors import HotloopError

#: One pass of one thread through a stage. `stage` is the stage's number, 0 for the wait at the end
#: of an open-ended iteration; `epoch` how often the stage had run in this launch; `tiles` those
#: that this thread computed. The times divide the pass: claim the first tile and ask for its
#: weights, wait, compute for oneself, work on tiles; in ns from the first event on.
FIELDS = ("stage", "epoch", "tiles", "start", "asked", "waited", "each", "end")
EVENT = np.dtype([(name, np.int64) for name in FIELDS])
Events = NDArray[np.void]


# written by machine code


@dataclass(frozen=True)
class Event:
    """The event that the traced function is filling; one without a `line` traces nothing."""

    line: Pointer | None = None

    @staticmethod
    def begin(context: Value, tid: Value, number: Value | int, epoch: Value) -> "Event":
        """Take the thread's next line.

        The first line of all has the capacity; each buffer begins with a line for its count.
        """
        buffers = word(context, 8 * shared.PROFILE).load_pointer()
        capacity = word(buffers, 0).load()
        mine = buffers.at((tid * (capacity + 2) + 1) * EVENT.itemsize)
        count = word(mine, 0)
        n = count.load()
        count.store(n + 1)
        event = Event(word(mine.at((minimum(n, capacity) + 1) * EVENT.itemsize), 0))
        event.put("stage", number)
        event.put("epoch", epoch)
        return event

    def put(self, name: str, value: Value | int) -> None:
        if self.line is not None:
            self.line.store(value, FIELDS.index(name))

    def stamp(self, *names: str) -> None:
        """The time now, under all of `names`."""
        if self.line is not None:
            now = ticks()
            for name in names:
                self.line.store(now, FIELDS.index(name))


def ticks() -> Value:
    """The CPU's time counter."""
    module, builder = current().module, current().builder
    if not module.target.triple.startswith("aarch64"):
        return intrinsic("llvm.readcyclecounter", i64)
    # There, LLVM's cycle counter is one that systems keep from programs; this one they do not.
    name = "llvm.read_volatile_register.i64"
    if name not in module.functions:
        signature = ir.FunctionType(i64.llvm, [ir.MetaDataType()])
        module.functions[name] = ir.Function(module.llvm, signature, name)
    register = module.llvm.add_metadata(["cntvct_el0"])
    return Value(builder.call(module.functions[name], [register]), i64)


# read by Python


class Recorder:
    """Buffers for `capacity` events of each thread.

    `start` empties them before a launch, `stop` follows it, then `events` has what was written.
    """

    def __init__(self, threads: int, capacity: int) -> None:
        self.capacity = capacity
        lines = 1 + threads * (capacity + 2)  # of each thread: the count, and what runs over
        self._arena = Arena(lines * EVENT.itemsize, "the profile")
        words = self._arena.data.view(np.int64).reshape(lines, len(FIELDS))
        words[0, 0] = capacity
        buffers = words[1:].reshape(threads, capacity + 2, len(FIELDS))
        self._counts: NDArray[np.int64] = buffers[:, 0, 0]
        self._events: Events = buffers[:, 1:].view(EVENT)[..., 0]
        self._started = self._stopped = (0, 0)

    @property
    def address(self) -> int:
        return self._arena.address

    def start(self) -> None:
        self._counts[:] = 0
        self._started = _now()

    def stop(self) -> None:
        self._stopped = _now()

    def events(self) -> Events:
        """EVENT [threads, n]: each thread's events in order, as far as all threads have them.

        A thread that the system held up may leave an open-ended loop some iterations early, when
        the others have done all that it would have found there. Raises where a buffer ran over.
        """
        count = int(self._counts.max())
        if count > self.capacity:
            raise HotloopError(
                f"{count:,} stages ran and the profile has room for {self.capacity:,}; profile "
                "fewer tokens."
            )
        events = self._events[:, : self._counts.min()].copy()
        (ns0, ticks0), (ns1, ticks1) = self._started, self._stopped
        rate = (ns1 - ns0) / max(ticks1 - ticks0, 1)
        first = events["start"].min(initial=ticks1)
        for name in FIELDS[3:]:
            events[name] = np.rint((events[name] - first) * rate)
        return events


def _now() -> tuple[int, int]:
    """(ns of the monotonic clock, ticks of the CPU's), read as close together as it goes."""
    return time.monotonic_ns(), int(_read_ticks()())


@cache
def _read_ticks() -> Callable[[], int]:
    module = Module("ticks", host())
    with function(module, "hl_ticks", [], i64, exported=True):
        ret(ticks())
    code = jit.load(module, ("hl_ticks",))
    read = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("hl_ticks"))
    _loaded.append(code)
    return read


_loaded: list[jit.Code] = []
