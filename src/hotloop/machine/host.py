"""This host: how many threads it really lends us, and what to call it."""

import ctypes
import os
import platform
import sys
from pathlib import Path

from hotloop.machine.machine import Machine


def cgroup_cpus(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs that the cgroup's quota grants (v2 `cpu.max`, v1 `cfs_quota_us`); None if unlimited."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        granted, interval = float(quota), float(period)
    except ValueError:  # "max": no quota
        return None
    return granted / interval if granted > 0 and interval > 0 else None


def available_threads() -> int:
    """Threads that can run at once: CPU affinity, capped by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup_cpus()
    return max(1, min(allowed or 1, int(quota) if quota else allowed or 1))


def cpu_name() -> str:
    """The CPU's marketing name, or its architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


#: Linux's arch_prctl on x86-64, asked for the tile data of AMX (arch/x86/include/uapi/asm/prctl.h).
_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


def may_use_tiles() -> bool:
    """Ask the system to keep AMX's tile registers for the threads of this process.

    A thread that uses them without is killed. What is granted is granted for good.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    arguments = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))
    return int(ctypes.CDLL(None, use_errno=True).syscall(*arguments)) == 0


def host(threads: int) -> Machine:
    """This machine with a team of `threads`."""
    return Machine(name=cpu_name(), cores=threads)
