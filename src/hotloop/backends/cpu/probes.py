"""Probes of this host: what a launch and a synchronisation cost, and how fast threads read.

Each returns the median of several measurements, in seconds or bytes per second. Like all that is
timed on a shared machine they wander from minute to minute: measure next to what is compared.
"""

import statistics
import time

import numpy as np

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.codegen import LAUNCH
from hotloop.backends.cpu.sync import define_sync, word
from hotloop.backends.cpu.team import Team
from hotloop.lang import Module, call, constant, function, i64, if_, loop, minimum, pause, ret
from hotloop.lang.target import host

#: Measurements of each probe, and the seconds that one should take at least.
REPEATS = 5
#: All threads but the first are done this part of a launch earlier, and fall asleep where they may.
IDLE_PART = 8
SECONDS = 0.01


class LaunchProbe:
    """Launches on a team that do nothing but pass time, or barriers."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self._args = np.zeros(2, np.int64)
        module = Module("launch_probe", host())
        sync = define_sync(module)
        with function(module, "launch", LAUNCH, i64, exported=True) as (_, shared_, tid, args):
            pauses = word(args, 0).load()
            spared = pauses // IDLE_PART * minimum(tid, 1)
            for _ in loop(pauses - spared):
                pause()
            for epoch in loop(word(args, 8).load()):
                failed = call(sync.barrier, [shared_, tid, constant(0, i64), epoch])
                with if_(failed.differs(0)):
                    ret(1)
            ret(0)
        self._code = jit.load(module, ("launch",))
        self._launch = (self._code.address("launch"), self._args.ctypes.data)
        self._context = np.zeros(shared.CONTEXT_WORDS, np.int64)

    def _seconds(self, launches: int, pauses: int, barriers: int) -> float:
        self._args[:] = pauses, barriers
        list_ = np.array([self._launch] * launches, np.uint64)
        started = time.perf_counter()
        self.team.run(self._context.ctypes.data, list_, ("probe",))
        return (time.perf_counter() - started) / launches

    def launch_seconds(self, busy: float = 0.0) -> float:
        """What a launch costs besides its work, where each keeps the threads busy for `busy` s.

        As at the end of a real one, some threads are done a little earlier than others.
        """
        pauses = int(busy * 200_000 / self._seconds(1, 200_000, 0))
        launches = max(20, int(SECONDS / max(busy, 2e-6)))
        # Many launches next to one that passes the same time: both see the same machine.
        found = [
            self._seconds(launches, pauses, 0) - self._seconds(1, launches * pauses, 0) / launches
            for _ in range(REPEATS)
        ]
        return max(0.0, statistics.median(found))

    def barrier_seconds(self) -> float:
        """What a barrier of the team costs in a running launch."""
        many = 10_000
        empty = statistics.median(self._seconds(1, 0, 0) for _ in range(REPEATS))
        found = [self._seconds(1, 0, many) for _ in range(REPEATS)]
        return max(0.0, (statistics.median(found) - empty) / many)
