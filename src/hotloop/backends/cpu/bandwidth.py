"""The memory's own speed: how fast this machine's threads can read, doing nothing else.

The probe is written in the kernel language and runs on a team like any launch: each thread sums
its share of a buffer, 32 bytes at a time. Whether asking for lines ahead helps differs by machine,
buffer and hour (here 24.5 without against 20 to 22 GB/s with, and the other way round), so each
probe tries both and keeps what is faster. What it measures is what a decode step could reach at
most. The size of the buffer matters: one that fits in a cache is read at the cache's speed, so
compare like with like.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.codegen import LAUNCH
from hotloop.backends.cpu.sync import word
from hotloop.backends.cpu.team import Team
from hotloop.kernels.tile import round_up
from hotloop.lang import (
    Module,
    Var,
    function,
    i32,
    i64,
    loop,
    prefetch,
    ret,
    sum_lanes,
    zeros,
)
from hotloop.lang.target import host

BLOCK = 256
#: Bytes ahead of the read that are asked for, in each of the ways that are tried.
WAYS = ((), (512, 4096))
#: Launches of each way from which the faster one is chosen.
TRIALS = 3
#: Seconds that one launch of the probe should take at least, so that waking the team is noise.
LAUNCH_SECONDS = 0.05
#: Bytes that any measurement reads.
LEAST_BYTES = 32 << 20


class ReadProbe:
    """Reads a buffer of `nbytes` with all threads of `team`; `gbps()` is one measurement.

    The buffer is a new one, or as much as fits of the `memory` that is given: a cache that holds
    what a program reads then holds what the probe reads.
    """

    def __init__(self, nbytes: int, team: Team, memory: Arena | None = None) -> None:
        self.team = team
        self.nbytes = round_up(nbytes, BLOCK * team.threads)
        if memory is None:
            memory = Arena(self.nbytes, "the bandwidth probe")
            memory.data[:] = 1
        elif self.nbytes > len(memory.data):
            self.nbytes -= round_up(self.nbytes - len(memory.data), BLOCK * team.threads)
        self._arena = memory
        self._sums = np.zeros(team.threads * 16, np.int64)
        self._args = np.array([self._arena.address, self.nbytes, 1, self._sums.ctypes.data], "u8")
        module = Module("read_probe", host())
        names = tuple(f"launch{way}" for way in range(len(WAYS)))
        for name, ahead in zip(names, WAYS, strict=True):
            _define_probe(module, name, ahead)
        self._code = jit.load(module, names)
        self._launches = self._faster(names)
        self._passes = self._enough()

    def _faster(self, names: tuple[str, ...]) -> NDArray[np.uint64]:
        """The launches of the way that reads faster."""
        ways = []
        for name in names:
            self._launches = np.array([[self._code.address(name), self._args.ctypes.data]], "u8")
            passes = self._enough()
            ways.append((min(self._seconds(passes) / passes for _ in range(TRIALS)), name))
        return np.array([[self._code.address(min(ways)[1]), self._args.ctypes.data]], "u8")

    def _enough(self) -> int:
        """Passes that take `LAUNCH_SECONDS`."""
        return max(1, int(LAUNCH_SECONDS / self._seconds(1)) + 1)

    def _seconds(self, passes: int) -> float:
        self._args[2] = passes
        context = np.zeros(shared.CONTEXT_WORDS, np.int64)
        started = time.perf_counter()
        self.team.run(context.ctypes.data, self._launches, ("probe",))
        return time.perf_counter() - started

    def gbps(self) -> float:
        """10^9 bytes per second, over one launch of several passes."""
        return self.nbytes * self._passes / self._seconds(self._passes) / 1e9

    def once(self) -> float:
        """The same over one pass: of a cache, it finds what others have left there.

        Of a buffer that any last cache holds, over as many as make waking the team noise.
        """
        passes = max(1, LEAST_BYTES // self.nbytes)
        return self.nbytes * passes / self._seconds(passes) / 1e9


def read_gbps(nbytes: int, threads: int, seconds: float = 1.0) -> float:
    """10^9 bytes per second of a plain read of `nbytes` by `threads` threads."""
    team = Team(threads)
    try:
        return median_rate(ReadProbe(nbytes, team).gbps, seconds)
    finally:
        team.close()


def median_rate(measure: Callable[[], float], seconds: float) -> float:
    """The median of as many measurements as fit in `seconds`, at least three."""
    rates: list[float] = []
    started = time.perf_counter()
    while len(rates) < 3 or time.perf_counter() - started < seconds:
        rates.append(measure())
    return statistics.median(rates)


def _define_probe(module: Module, name: str, aheads: tuple[int, ...]) -> None:
    """args: the buffer, its bytes, how often to read it, an i64[threads, 16] for the sums."""
    with function(module, name, LAUNCH, i64, exported=True) as (_, team, tid, args):
        share = word(args, 8).load() // word(team, shared.THREADS).load()
        mine = word(args, 0).load_pointer().at(tid * share)
        sums = [Var(zeros(i32 * 8)) for _ in range(4)]
        for _ in loop(word(args, 16).load()):
            for at in loop(share, step=BLOCK):
                for ahead in aheads:
                    for line in range(0, BLOCK, 64):
                        prefetch(mine.at(at + ahead + line))
                for k in range(BLOCK // 32):
                    part = mine.at(at + k * 32).cast(i32)
                    sums[k % 4].set(sums[k % 4] + part.load(0, lanes=8))
        total = sums[0] + sums[1] + sums[2] + sums[3]
        word(word(args, 24).load_pointer(), 0).store(sum_lanes(total).to(i64), tid * 16)
        ret(0)
