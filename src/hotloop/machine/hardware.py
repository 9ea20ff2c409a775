"""Hardware: a whole machine as data, for those who predict its time.

A machine is `sockets` equal ones side by side: GPUs, dataflow chips, CPUs. `FIELDS` is everything
that a description may say of it, per socket unless it says otherwise; `data/` has the machines that
come with hotloop, a TOML file each. What the passes know of a machine is less: `machine.Machine`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from hotloop.machine.quantity import Dimension, Quantity, parse
from hotloop.util.errors import UsageError

Kind = Literal["cpu", "gpu", "dataflow"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Field:
    """What a machine's file may say: the dimension of the number, its meaning, who needs it.

    `required` are the kinds of machines that must have it, `others` those that may. A field
    `by_threads` may have another value for each number of threads.
    """

    dimension: Dimension
    meaning: str
    required: tuple[Kind, ...] = ()
    optional: tuple[Kind, ...] = ()
    by_threads: bool = False


_CHIPS: tuple[Kind, ...] = ("gpu", "dataflow")
_CPU: tuple[Kind, ...] = ("cpu",)
_ALL: tuple[Kind, ...] = KINDS
_ONLY_DATAFLOW: tuple[Kind, ...] = ("dataflow",)

# fmt: off
FIELDS: Mapping[str, Field] = {
    "sockets": Field("count", "equal sockets that share the work", _ALL),
    "cores": Field("count", "cores of a socket", _CPU),
    "vector": Field("bits", "width of a vector register", _CPU),
    "compute": Field("flops", "peak of dense bf16 matrix products", _CHIPS, _CPU),
    "memory_size": Field("size", "capacity of the main memory", _ALL),
    "memory_bandwidth": Field("rate", "peak of the main memory", _ALL, by_threads=True),
    "memory_share": Field("share", "part of that peak that a long stream reaches", _CHIPS, _CPU),
    "memory_latency": Field("time", "from asking for memory to its first byte", _CHIPS),
    "second_size": Field("size", "capacity of the memory behind the main one", (), _CHIPS),
    "second_bandwidth": Field("rate", "what is read of it in a second", (), _CHIPS),
    "onchip_size": Field("size", "on-chip memory where weights may wait", _CHIPS),
    "onchip_bandwidth": Field("rate", "what units read of it in a second", _CHIPS),
    "l1_size": Field("size", "first-level data cache of a core", (), _CPU),
    "l2_size": Field("size", "second-level cache of a core", (), _CPU),
    "l3_size": Field("size", "last-level cache", (), _CPU),
    "l2_bandwidth": Field("rate", "reads from the second-level caches", (), _CPU, by_threads=True),
    "l3_bandwidth": Field("rate", "reads from the last-level cache", (), _CPU, by_threads=True),
    "link_bandwidth": Field("rate", "to the other sockets together", _CHIPS),
    "link_latency": Field("time", "a small message to all sockets and back", _CHIPS),
    "program_load": Field("time", "configure the units for another kernel", _ONLY_DATAFLOW),
    "argument_load": Field("time", "hand over the addresses of a call", _ONLY_DATAFLOW),
    "start": Field("time", "start a call, and learn that it has ended", _ALL, by_threads=True),
    "start_work": Field("time", "work of the calls that `start` was measured on", (), _CPU,
                        by_threads=True),
    "start_short": Field("time", "start of a call as short as an op", (), _CPU, by_threads=True),
    "start_short_work": Field("time", "work of those calls", (), _CPU, by_threads=True),
    "start_long": Field("time", "start of a call with more work", (), _CPU, by_threads=True),
    "start_long_work": Field("time", "work of those calls", (), _CPU, by_threads=True),
    "host_call": Field("time", "the host's part of a command that it issues itself", _CHIPS),
    "fill": Field("time", "fill and drain of a kernel's pipeline", _CHIPS),
    "stage_sync": Field("time", "a stage learns that its inputs are complete", _ALL,
                        by_threads=True),
    "token": Field("time", "what the host does between two tokens", _CHIPS, _CPU),
}
# fmt: on


@dataclass(frozen=True)
class Hardware:
    """A machine: `quantities` by the names of `FIELDS`, or `name.threads` where they differ."""

    name: str
    title: str
    kind: Kind
    quantities: Mapping[str, Quantity]
    note: str = ""

    def __getitem__(self, name: str) -> float:
        """The value of a field, of all threads where it depends on them; it must be there."""
        if name in self.quantities:
            return self.quantities[name].value
        return self.at(name, max(threads for threads, _ in self._by_threads(name)))

    def get(self, name: str, default: float = 0.0) -> float:
        return self[name] if self.has(name) else default

    def has(self, name: str) -> bool:
        return name in self.quantities or any(self._by_threads(name))

    def at(self, name: str, threads: int) -> float:
        """The value for so many threads, on the line between the two numbers that are known."""
        known = sorted(self._by_threads(name))
        if not known:
            return self[name]
        below = max((k for k in known if k[0] <= threads), default=known[0])
        above = min((k for k in known if k[0] >= threads), default=known[-1])
        if above[0] <= below[0]:
            return below[1]
        part = (threads - below[0]) / (above[0] - below[0])
        return below[1] + part * (above[1] - below[1])

    def _by_threads(self, name: str) -> Iterator[tuple[int, float]]:
        for key, quantity in self.quantities.items():
            field, _, threads = key.partition(".")
            if field == name and threads:
                yield int(threads), quantity.value

    def with_values(self, **values: float) -> "Hardware":
        """The machine with other values (what-if): in base units, the rest as it was."""
        changed = {
            name: replace(self.quantities[name], value=value) for name, value in values.items()
        }
        return replace(self, quantities={**self.quantities, **changed})

    def with_settings(self, settings: Mapping[str, str]) -> "Hardware":
        """The machine with some fields set from text: `{"memory_bandwidth": "1.8 TB/s"}`.

        One that differs by threads is set for all numbers of them, or for one (`start.2`). Raises
        `UsageError` for a field that this machine does not have, or a wrong unit.
        """
        values: dict[str, float] = {}
        for name, text in settings.items():
            names = [each for each in self.quantities if name in (each, each.partition(".")[0])]
            if not names:
                known = ", ".join(dict.fromkeys(each.partition(".")[0] for each in self.quantities))
                raise UsageError(f"{self.name} has no field {name!r}; it has {known}.")
            try:
                value = parse(text, self.quantities[names[0]].dimension)
            except ValueError as error:
                raise UsageError(f"{name} is {error}.") from None
            values |= dict.fromkeys(names, value)
        return self.with_values(**values)
