"""The result of a load test as tables, and its times as histograms."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from hotloop.bench.load import PERCENTILES, Result

#: Bins of a histogram, at most, and values that each should have, on average.
BINS, VALUES_PER_BIN = 16, 4
BAR = 40
_NAMES = {"first": "first token", "between": "between tokens", "total": "whole answer"}


def render(result: Result) -> list[Table | str]:
    """A line that sums it up, the percentiles, and histograms of the waits for tokens."""
    good = result.good
    tokens = sum(answer.tokens for answer in good)
    lines = [
        f"{result.model}: {_count(len(good), 'answer')} to {_count(result.plan.clients, 'client')} "
        f"in {result.seconds:.1f} s, {_count(tokens, 'token')}: {result.rate:.1f} tok/s."
    ]
    prompt, cached = (
        sum(getattr(answer, name) for answer in good) for name in ("prompt_tokens", "cached_tokens")
    )
    if cached:
        lines.append(f"Of {prompt} prompt tokens, {cached} were found in the server's cache.")
    if result.errors:
        failed = _count(len(result.errors), "request")
        lines.append(f"{failed} failed; the first said: {result.errors[0]}")
    parts: list[Table | str] = ["\n".join(lines)]
    if good:
        parts.append(_percentiles(result))
        for name in ("first", "between"):
            if len(times := result.times(name)) >= 2 * VALUES_PER_BIN:
                parts.append(f"{_NAMES[name]}, ms\n{histogram([1e3 * t for t in times])}")
    return parts


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _percentiles(result: Result) -> Table:
    table = Table("ms", *(f"p{at}" for at in PERCENTILES))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, words in _NAMES.items():
        values = result.percentiles(name).values()
        table.add_row(words, *(f"{1e3 * value:.2f}" for value in values))
    return table


def histogram(values: Sequence[float]) -> str:
    """How many of `values` lie where, in bins whose edges grow by a constant factor.

    Latencies spread over orders of magnitude: equal bins would put nearly all into the first.
    """
    bins = min(BINS, max(1, len(values) // VALUES_PER_BIN))
    low, high = max(min(values), 1e-3), max(max(values), 1e-3)
    edges = np.geomspace(low, high if high > low else low * 1.01, bins + 1)
    counts, _ = np.histogram(np.clip(values, low, high), edges)
    most = counts.max()
    return "\n".join(
        f"{edges[at]:>8.2f} – {edges[at + 1]:<8.2f} {_bar(count, most):<{BAR}} {count}"
        for at, count in enumerate(counts.tolist())
    )


def _bar(count: int, most: int) -> str:
    """In proportion, but never nothing for something."""
    return "█" * round(BAR * count / most) or "▏" * (count > 0)
