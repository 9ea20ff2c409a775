"""The result of a load test as tables, and its times as histograms."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from hotloop.bench.load import PERCENTILES, Result

BINS = 16
BAR = 40
_NAMES = {"first": "first token", "between": "between tokens", "total": "whole answer"}


def render(result: Result) -> list[Table | str]:
    """A line that sums it up, the percentiles, and a histogram of the times between tokens."""
    good = result.good
    tokens = sum(answer.tokens for answer in good)
    lines = [
        f"{result.model}: {len(good)} answers to {result.plan.clients} clients in "
        f"{result.seconds:.1f} s, {tokens} tokens: {result.rate:.1f} tok/s."
    ]
    prompt, cached = (
        sum(getattr(answer, name) for answer in good) for name in ("prompt_tokens", "cached_tokens")
    )
    if cached:
        lines.append(f"Of {prompt} prompt tokens, {cached} were found in the server's cache.")
    if result.errors:
        lines.append(f"{len(result.errors)} requests failed; the first: {result.errors[0]}")
    parts: list[Table | str] = ["\n".join(lines)]
    if good:
        parts.append(_percentiles(result))
        for name in ("first", "between"):
            if times := result.times(name):
                parts.append(f"{_NAMES[name]}, ms\n{histogram([1e3 * t for t in times])}")
    return parts


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
    low, high = max(min(values), 1e-3), max(max(values), 1e-3)
    edges = np.geomspace(low, high if high > low else low * 1.01, BINS + 1)
    counts, _ = np.histogram(np.clip(values, low, high), edges)
    most = counts.max()
    return "\n".join(
        f"{edges[at]:>10.2f} {'█' * round(BAR * count / most):<{BAR}} {count}".rstrip()
        for at, count in enumerate(counts.tolist())
    )
