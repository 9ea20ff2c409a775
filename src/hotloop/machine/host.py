"""This host: how many threads it really lends us, and what to call it."""

import os
import platform
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


def host(threads: int) -> Machine:
    """This machine with a team of `threads`."""
    return Machine(name=cpu_name(), cores=threads)
