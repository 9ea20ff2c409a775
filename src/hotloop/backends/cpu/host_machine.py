"""This host's memory and caches, as numbers of a machine's description with their sources."""

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from hotloop.backends.cpu.arena import available_bytes
from hotloop.backends.cpu.bandwidth import ReadProbe
from hotloop.backends.cpu.team import Team
from hotloop.lang.target import host
from hotloop.machine.hardware import FIELDS, Hardware
from hotloop.machine.host import available_threads, cpu_name
from hotloop.machine.quantity import Dimension, Quantity

#: A buffer that few caches hold, and the part of the free memory that a probe may take.
MEMORY_BYTES, MEMORY_PART = 512 << 20, 4
READS = 5
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_VECTORS = (("avx512f", 512), ("avx2", 256))

Progress = Callable[[int, int | None, str], None]


def probe_host(progress: Progress = lambda done, total, what: None) -> Hardware:
    """Measure what threads read; takes a few seconds for each number of threads.

    What launches cost is missing: that takes programs (`predict.reference`).
    """
    counts = thread_counts(available_threads())
    quantities = dict(_facts())
    for done, threads in enumerate(counts):
        progress(done, len(counts), f"probe {threads} threads")
        quantities.update(_reads(threads, quantities))
    quantities = {name: quantities[name] for name in sorted(quantities, key=_order)}
    return Hardware("host", cpu_name(), "cpu", quantities)


def thread_counts(available: int) -> list[int]:
    """1, 2, 4, … and all."""
    counts = {available}
    count = 1
    while count < available:
        counts.add(count)
        count *= 2
    return sorted(counts)


def _order(name: str) -> tuple[int, int]:
    field, _, threads = name.partition(".")
    return list(FIELDS).index(field), int(threads or 0)


def _facts() -> Iterator[tuple[str, Quantity]]:
    def fact(value: float, dimension: Dimension, source: str) -> Quantity:
        return Quantity(value, dimension, source, "measured")

    yield "sockets", fact(1, "count", "the process counts as one")
    yield "cores", fact(available_threads(), "count", "CPU affinity and the cgroup's quota")
    features = host().features
    width = next((bits for name, bits in _VECTORS if name in features), 128)
    yield "vector", fact(width, "bits", "what LLVM says of this CPU")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield "memory_size", fact(total, "size", "the system's count of pages")
    for name, nbytes in cache_sizes().items():
        yield name, fact(nbytes, "size", f"{CACHES}")


def cache_sizes(root: Path = CACHES) -> dict[str, int]:
    """l1_size, l2_size, l3_size in bytes, as far as the system tells."""
    found: dict[str, int] = {}
    for index in sorted(root.glob("index*")):
        try:
            level = (index / "level").read_text().strip()
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
            nbytes = int(size.removesuffix("K")) * (1024 if size.endswith("K") else 1)
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and level in ("1", "2", "3") and nbytes > 0:
            found[f"l{level}_size"] = nbytes
    return found


def _reads(threads: int, known: dict[str, Quantity]) -> Iterator[tuple[str, Quantity]]:
    free = available_bytes() or 4 * MEMORY_BYTES
    sizes = {"memory_bandwidth": min(MEMORY_BYTES, free // MEMORY_PART)}
    if "l2_size" in known:
        sizes["l2_bandwidth"] = int(known["l2_size"].value) // 2 * threads
    if "l3_size" in known:
        sizes["l3_bandwidth"] = min(int(known["l3_size"].value) // 4, MEMORY_BYTES // 8)
    team = Team(threads)
    try:
        for name, nbytes in sizes.items():
            probe = ReadProbe(nbytes, team)
            rate = 1e9 * statistics.median(probe.gbps() for _ in range(READS))
            source = f"{threads} threads read {nbytes / 1e6:,.1f} MB again and again"
            yield f"{name}.{threads}", Quantity(rate, "rate", source, "measured")
    finally:
        team.close()
