"""This host: its description and the speed of kernels on it, probed once a day.

Both are kept in the cache folder. Probes of kernels are those that a prediction needs; each is kept
for the threads and the memory that it was made with.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

from hotloop.backends.cpu.kernel_probe import OpCase, StreamCase
from hotloop.machine import load
from hotloop.machine.hardware import Hardware
from hotloop.machine.host import available_threads, cpu_name
from hotloop.machine.quantity import Quantity
from hotloop.predict.cpu import Kernels, Shape, op_cases, stream_cases
from hotloop.util import settings
from hotloop.util.errors import CacheError, MachineError

HOST = "host"
#: Seconds that probed numbers hold: what else runs on a machine changes from day to day.
MAX_AGE = 24 * 3600.0

#: Seconds after which no further kernel is probed; one that is not runs at the memory's speed.
PROBE_SECONDS = 60.0
#: Measurements of a kernel, and of the reference decoder, of which the median counts.
ROUNDS, REFERENCE_ROUNDS = 3, 5
#: Memory that kernels are probed on, at most, and the part of the free memory.
MOST_BYTES, MEMORY_PART = 1 << 30, 4

Progress = Callable[[int, int | None, str], None]
Probed = dict[str, float]


def find_machine(
    name: str,
    *,
    refresh: bool = False,
    progress: Progress = lambda done, total, what: None,
) -> Hardware:
    """A machine by name, as `machine.load.find`, and `host`: this one."""
    return host_machine(refresh=refresh, progress=progress) if name == HOST else load.find(name)


def host_machine(
    *, refresh: bool = False, progress: Progress = lambda done, total, what: None
) -> Hardware:
    """This host, from the cache where it was probed less than a day ago; with `refresh`, anew.

    Raises `CacheError` where the cache cannot be written.
    """
    known = None if refresh else known_host()
    if known is not None:
        return known
    from hotloop.backends.cpu.host_machine import probe_host, thread_counts

    hardware = probe_host(progress)
    counts = thread_counts(available_threads())
    for done, threads in enumerate(counts):
        progress(done, len(counts), f"probe launches of {threads} threads")
        hardware = replace(
            hardware, quantities={**hardware.quantities, **dict(_boundaries(threads))}
        )
    _keep(_path(), load.to_toml(hardware))
    return hardware


def _boundaries(threads: int) -> Iterator[tuple[str, Quantity]]:
    """Stages and launches of a team, of the reference decoder."""
    from hotloop.backends.cpu.team import Team
    from hotloop.predict.reference import SOURCES, Reference

    team = Team(threads)
    try:
        reference = Reference(team)
        try:
            for _ in range(REFERENCE_ROUNDS):
                reference.measure()
            found = asdict(reference.boundaries)
        finally:
            reference.close()
    finally:
        team.close()
    for name, seconds in found.items():
        yield f"{name}.{threads}", Quantity(seconds, "time", SOURCES[name], "measured")


def host_kernels(
    shapes: Sequence[Shape],
    threads: int,
    progress: Progress = lambda done, total, what: None,
) -> Kernels:
    """What the kernels of these programs cost a team of this host, probed where it is not known.

    Stops probing after `PROBE_SECONDS`: what is left out runs at the memory's speed.
    """
    nbytes = int(max(found.nbytes for found in shapes))
    ops, streams = op_cases(shapes), stream_cases(shapes)
    known = _known_kernels()

    def key(case: object) -> str:
        return f"{threads} threads, {nbytes} bytes: {case!r}"

    new_ops = [case for case in ops if key(case) not in known]
    new_streams = [case for case in streams if key(case) not in known]
    if new_ops or new_streams:
        found = _probe(new_ops, new_streams, nbytes, threads, progress)
        for cases in (found.rows, found.streams):
            known |= {key(case): value for case, value in cases.items()}
        _keep(_path(".json"), json.dumps(known))
    return Kernels(
        {case: known[key(case)] for case in ops if key(case) in known},
        {case: known[key(case)] for case in streams if key(case) in known},
    )


def _probe(
    ops: Sequence[OpCase],
    streams: Sequence[StreamCase],
    nbytes: int,
    threads: int,
    progress: Progress,
) -> Kernels:
    from hotloop.backends.cpu.arena import Arena, available_bytes
    from hotloop.backends.cpu.kernel_probe import FILL
    from hotloop.backends.cpu.team import Team
    from hotloop.predict.kernels import probe

    room = min(MOST_BYTES, (available_bytes() or MEMORY_PART * MOST_BYTES) // MEMORY_PART)
    memory = Arena(max(1, min(nbytes, room)), "the kernels' probe")
    memory.data[:] = FILL
    team = Team(threads)
    try:
        return probe(ops, streams, memory, team, ROUNDS, PROBE_SECONDS, progress)
    finally:
        team.close()


def _known_kernels() -> Probed:
    """What was probed of kernels within a day; nothing where that cannot be read."""
    path = _path(".json")
    if not _fresh(path):
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        return {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # damaged
        return {}


def _keep(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise CacheError(
            f"{path} cannot be written ({error.strerror or error}); make room there, or set "
            "HOTLOOP_CACHE to another folder."
        ) from None


def known_host() -> Hardware | None:
    """What was probed of this host within a day; None where nothing was, or nothing can be read."""
    path = _path()
    if not _fresh(path):
        return None
    try:
        return load.read(path)
    except MachineError:  # written by another version, or damaged
        return None


def unprobed_host() -> Hardware:
    """This host before any probe: a name without numbers, for lists; nothing can be predicted."""
    note = "this machine, not probed yet (hotloop machines host)."
    return Hardware(name=HOST, title=cpu_name(), kind="cpu", quantities={}, note=note)


def _path(suffix: str = ".toml") -> Path:
    facts = (cpu_name(), str(available_threads()), platform.release(), settings.TARGET.get())
    return settings.cache_dir() / "machines" / f"host-{_digest(facts)}{suffix}"


def _digest(facts: tuple[str, ...]) -> str:
    return sha256("\n".join(facts).encode()).hexdigest()[:16]


def _fresh(path: Path) -> bool:
    try:
        return 0 <= time.time() - path.stat().st_mtime < MAX_AGE
    except OSError:
        return False
