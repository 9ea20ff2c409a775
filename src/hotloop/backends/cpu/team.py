"""The team: threads that live as long as a model, and enter launches together.

The threads are Python threads that spend their life inside one call of machine code, without the
interpreter lock. The thread that calls `run` is thread 0.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.arena import Arena
from hotloop.backends.cpu.runtime_code import NEVER_PARK, define_runtime
from hotloop.lang import Module
from hotloop.lang.target import host
from hotloop.machine.host import available_threads
from hotloop.util import settings
from hotloop.util.errors import HangError, UsageError

MAX_STAGES = 1024
#: Looks at a counter before a waiting thread yields its core: some 100 µs.
SPINS = 3000
#: With more threads than cores, whoever waits should give way at once.
SPINS_OVERSUBSCRIBED = 20
#: Looks at the mailbox before an idle thread parks, when asked to park.
IDLE_SPINS = {"parked": 0, "spinning": NEVER_PARK}
JOIN_SECONDS = 5.0


class Team:
    """`threads` threads, parked or spinning between launches.

    Raises `UsageError` for a number of threads below one.
    """

    def __init__(self, threads: int, wake: str = "parked") -> None:
        if threads < 1:
            raise UsageError(f"a team needs at least one thread, not {threads}.")
        self.threads = threads
        self.wake = wake
        self._runtime = _runtime()
        self._layout = shared.Shared(threads, MAX_STAGES)
        self._arena = Arena(self._layout.nbytes, "the thread team")
        self._words: NDArray[np.int64] = self._arena.data.view(np.int64)
        self._running = threading.Lock()
        self._broken = False
        crowded = threads > available_threads()
        self._set(shared.THREADS, threads)
        self._set(shared.SPINS, SPINS_OVERSUBSCRIBED if crowded else SPINS)
        self._set(shared.WATCHDOG, int(settings.WATCHDOG.get() * 1e9))
        self._set(shared.IDLE_SPINS, IDLE_SPINS[wake])
        workers = [
            threading.Thread(
                target=self._runtime.worker,
                args=(self._arena.address, tid),
                name=f"hotloop-{tid}",
                daemon=True,
            )
            for tid in range(1, threads)
        ]
        for worker in workers:
            worker.start()
        # Threads that read the mailbox must be gone before its memory is.
        self.close = weakref.finalize(self, _end, self._runtime, self._arena, workers)

    def _set(self, offset: int, value: int) -> None:
        self._words[offset // 8] = value

    def set_wake(self, wake: str) -> None:
        """Park or spin from the next launch on."""
        self.wake = wake
        self._set(shared.IDLE_SPINS, IDLE_SPINS[wake])

    def run(
        self,
        context: int,
        launches: NDArray[np.uint64],
        stages: Sequence[str],
        done: int = 0,
    ) -> None:
        """Run the launches in order; again and again, where `done` is the address of a flag.

        `launches` is uint64[n, 2]: code, arguments. `stages` label the stages' numbers. One run at
        a time. Raises `HangError` when no thread makes progress for the watchdog's time; the team
        is of no use afterwards.
        """
        if not self.close.alive:
            raise UsageError("this model is closed; load it again.")
        with self._running:
            if self._broken:
                raise HangError("an earlier launch hung, and its threads are lost; load again.")
            sync_bytes = min(len(stages), MAX_STAGES) * self._layout.stage_bytes
            status = self._runtime.run(
                self._arena.address, context, launches.ctypes.data, len(launches), sync_bytes, done
            )
            if status:
                self._broken = True
                raise HangError(self._describe_hang(stages))

    def _describe_hang(self, stages: Sequence[str]) -> str:
        """The state of every thread, from what each left in its line."""
        seconds = settings.WATCHDOG.get()
        lines = [f"a launch made no progress for {seconds:g} s and was stopped; its threads:"]
        for tid in range(self.threads):
            at = (shared.THREAD + tid * shared.LINE) // 8
            stage, epoch, target, found = (
                int(self._words[at + word // 8])
                for word in (shared.STAGE, shared.EPOCH, shared.TARGET, shared.FOUND)
            )
            if stage > 0:
                where = stages[stage - 1] if stage <= len(stages) else f"stage {stage}"
                what = f"waits in {where}, iteration {epoch}: counter {found} of {target}"
            elif stage < 0:
                what = f"waits for the others to leave: {found} of {target}"
            else:
                what = "is at work, or has left"
            lines.append(f"  thread {tid} {what}")
        return "\n".join(lines)


def _end(runtime: "_Runtime", arena: Arena, workers: Sequence[threading.Thread]) -> None:
    """End the threads; one that does not come back keeps its memory."""
    runtime.stop(arena.address)
    for worker in workers:
        worker.join(JOIN_SECONDS)
        if worker.is_alive():
            _lost.append(arena)


_lost: list[Arena] = []


@dataclass(frozen=True)
class _Runtime:
    """The team's machine code."""

    code: jit.Code
    worker: Callable[..., int]
    run: Callable[..., int]
    stop: Callable[..., int]


@cache
def _runtime() -> _Runtime:
    module = Module("hotloop_runtime", host(settings.TARGET.get() == "portable"))
    define_runtime(module)
    code = jit.load(module, ("hl_worker", "hl_run", "hl_stop"))
    address, number = ctypes.c_void_p, ctypes.c_int64
    run = ctypes.CFUNCTYPE(number, address, address, address, number, number, address)
    return _Runtime(
        code,
        worker=ctypes.CFUNCTYPE(number, address, number)(code.address("hl_worker")),
        run=run(code.address("hl_run")),
        stop=ctypes.CFUNCTYPE(number, address)(code.address("hl_stop")),
    )
