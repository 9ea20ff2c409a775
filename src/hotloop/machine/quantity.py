"""Quantities: a number with its unit, where it comes from, and how far to trust it.

In a machine's file:

    [memory_bandwidth]
    value = "1.6 TB/s"
    range = ["1.6 TB/s", "2.0 TB/s"]
    basis = "published"
    source = "Koeplinger et al., Hot Chips 2024 slides: 25.6 TB/s over 16 sockets"

Units are decimal (1 GB is 10^9 bytes) unless they say otherwise (1 GiB is 2^30).
"""

import re
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, get_args

Dimension = Literal["rate", "size", "time", "flops", "share", "count", "bits"]
Basis = Literal["published", "derived", "measured", "fitted", "assumed"]
BASES: tuple[Basis, ...] = get_args(Basis)

#: Each unit's dimension, and how many of the base unit (bytes per second, bytes, seconds,
#: floating-point operations per second, one) it is.
UNITS: dict[str, tuple[Dimension, float]] = {
    "kB": ("size", 1e3),
    "MB": ("size", 1e6),
    "GB": ("size", 1e9),
    "TB": ("size", 1e12),
    "KiB": ("size", 2**10),
    "MiB": ("size", 2**20),
    "GiB": ("size", 2**30),
    "TiB": ("size", 2**40),
    "MB/s": ("rate", 1e6),
    "GB/s": ("rate", 1e9),
    "TB/s": ("rate", 1e12),
    "ns": ("time", 1e-9),
    "us": ("time", 1e-6),
    "µs": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "GFLOP/s": ("flops", 1e9),
    "TFLOP/s": ("flops", 1e12),
    "%": ("share", 1e-2),
    "bit": ("bits", 1.0),
    "": ("count", 1.0),
}
#: What a value of each dimension looks like, for messages.
EXAMPLES: dict[Dimension, str] = {
    "rate": "a rate such as 3.35 TB/s",
    "size": "a size such as 80 GB",
    "time": "a time such as 1.3 us",
    "flops": "operations per second such as 989 TFLOP/s",
    "share": "a share such as 90 %",
    "count": "a whole number such as 8",
    "bits": "a width such as 512 bit",
}
_SHOWN: dict[Dimension, tuple[str, ...]] = {
    "rate": ("TB/s", "GB/s", "MB/s"),
    "size": ("TB", "GB", "MB", "kB"),
    "time": ("ms", "us", "ns"),
    "flops": ("TFLOP/s", "GFLOP/s"),
    "share": ("%",),
    "count": ("",),
    "bits": ("bit",),
}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) *(\S*)")


@dataclass(frozen=True)
class Quantity:
    """`value` in the base unit of its dimension; `low` and `high` bound what it may really be."""

    value: float
    dimension: Dimension
    source: str
    basis: Basis = "published"
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return show(self.value, self.dimension)


def parse(text: object, dimension: Dimension) -> float:
    """`"1.6 TB/s"` as 1.6e12; raises `ValueError` that says what was expected of `dimension`."""
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    match = _NUMBER.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = UNITS.get(match[2]) if match else None
    value = float(match[1]) * unit[1] if match and unit and unit[0] == dimension else inf
    whole = dimension != "count" or (value >= 1 and value.is_integer())
    possible = dimension == "time" or 0 < value <= (1 if dimension == "share" else inf)
    if not isfinite(value) or not whole or not possible:
        raise ValueError(f"{text!r:.40} where {EXAMPLES[dimension]} is expected")
    return value


def show(value: float, dimension: Dimension) -> str:
    """The value in the unit that leaves one to three digits before the point."""
    units = _SHOWN[dimension]
    unit = next((u for u in units if value >= UNITS[u][1]), units[-1])
    return f"{value / UNITS[unit][1]:.4g} {unit}".strip()
