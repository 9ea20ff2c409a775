"""This host: what the system lends, in both of cgroup's dialects."""

import os
import sys
from pathlib import Path

import pytest

from hotloop.backends.cpu.arena import Arena, available_bytes
from hotloop.machine import host
from hotloop.util.errors import OutOfMemoryError


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("200000 100000\n", 2.0), ("50000 100000", 0.5), ("max 100000\n", None), ("nonsense", None)],
)
def test_cgroup_v2(tmp_path: Path, text: str, cpus: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert host.cgroup_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("300000", 3.0), ("-1", None)])
def test_cgroup_v1(tmp_path: Path, quota: str, cpus: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert host.cgroup_cpus(tmp_path) == cpus


def test_no_cgroup(tmp_path: Path) -> None:
    assert host.cgroup_cpus(tmp_path) is None


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (3.9, 3), (0.2, 1), (100.0, 8)])
def test_threads_obey_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(host, "cgroup_cpus", lambda: quota)
    assert host.available_threads() == threads


def test_the_cpu_has_a_name() -> None:
    assert host.cpu_name()


def test_memory_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(OutOfMemoryError, match=r"the KV cache needs .* MB and .* are available"):
        Arena(1 << 50, "the KV cache")


def test_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_bytes(meminfo) is None
    meminfo.write_text("MemTotal: 5 kB\nMemAvailable:    1000 kB\n")
    assert available_bytes(meminfo) == 1_024_000
    meminfo.write_text("MemAvailable: many\n")
    assert available_bytes(meminfo) is None


def test_arenas_start_on_a_big_page_and_at_zero() -> None:
    arena = Arena(12345, "a test")
    assert arena.address % (2 << 20) == 0
    assert len(arena.data) == 12345
    assert not arena.data.any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's map of a process")
def test_arenas_are_private_memory_which_alone_gets_big_pages() -> None:
    arena = Arena(12345, "a test")
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= arena.address < high:
            assert line.split()[1] == "rw-p"
            return
    pytest.fail("the arena is not in the map")


def test_tiles_are_asked_for_on_linux_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.may_use_tiles() == host.may_use_tiles(), "asking twice changes nothing"
    monkeypatch.setattr(host.sys, "platform", "darwin")
    assert not host.may_use_tiles()
