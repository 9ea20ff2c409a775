"""This host's description: probed once a day, and kept in the cache folder."""

import platform
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from hotloop.machine import load
from hotloop.machine.hardware import Hardware
from hotloop.machine.host import available_threads, cpu_name
from hotloop.util import settings
from hotloop.util.errors import CacheError, MachineError

HOST = "host"
#: Seconds that probed numbers hold: what else runs on a machine changes from day to day.
MAX_AGE = 24 * 3600.0

Progress = Callable[[int, int | None, str], None]


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
    from hotloop.backends.cpu.host_machine import probe_host

    hardware, path = probe_host(progress), _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(load.to_toml(hardware), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise CacheError(
            f"{path} cannot be written ({error.strerror or error}); make room there, or set "
            "HOTLOOP_CACHE to another folder."
        ) from None
    return hardware


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


def _path() -> Path:
    facts = (cpu_name(), str(available_threads()), platform.release(), settings.TARGET.get())
    return settings.cache_dir() / "machines" / f"host-{_digest(facts)}.toml"


def _digest(facts: tuple[str, ...]) -> str:
    return sha256("\n".join(facts).encode()).hexdigest()[:16]


def _fresh(path: Path) -> bool:
    try:
        return 0 <= time.time() - path.stat().st_mtime < MAX_AGE
    except OSError:
        return False
