"""What a number was measured on: without it, it means nothing."""

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime

from hotloop.machine.host import available_threads, cpu_name


@dataclass(frozen=True)
class Fingerprint:
    """`cores` are those the system has, `threads_available` those that this process may use."""

    cpu: str
    cores: int
    threads_available: int
    kernel: str
    python: str
    llvmlite: str
    hotloop: str
    date: str


def fingerprint() -> Fingerprint:
    """This machine, these versions, now."""
    import llvmlite

    from hotloop import __version__

    return Fingerprint(
        cpu=cpu_name(),
        cores=os.cpu_count() or 1,
        threads_available=available_threads(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        llvmlite=str(llvmlite.__version__),
        hotloop=__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
