"""The comparison as tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from comparison import ENGINES, Comparison, Row
from first_token import FirstToken
from hotloop.bench.fingerprint import Fingerprint


def render(
    machine: Fingerprint,
    comparisons: Sequence[Comparison],
    starts: Sequence[FirstToken],
    rounds: int,
) -> Iterator[RenderableType]:
    yield f"{machine.cpu}, {machine.cores} cores · {machine.kernel} · Python {machine.python}"
    yield f"hotloop {machine.hotloop}, llvmlite {machine.llvmlite} · {machine.date}"
    for comparison in comparisons:
        yield ""
        yield Text.assemble(
            (comparison.model, "bold"),
            f"  {comparison.file_bytes / 1e6:,.0f} MB, a token reads "
            f"{comparison.weight_bytes / 1e6:,.1f} MB of weights",
        )
        yield _speeds(comparison)
        for engine, reason in comparison.absent.items():
            yield Text(f"{engine}: {reason}", "dim")
    if starts:
        yield ""
        yield _starts(starts)
    yield ""
    yield Text(
        f"Medians of {rounds} interleaved rounds; spread is lowest to highest. "
        f"× is the speed next to {ENGINES[1]}'s with as many threads. GB/s counts the weights as "
        "the file stores them and the 16-bit keys and values of the positions before; its limit is "
        "a plain read of as many bytes by as many threads, in the same rounds. GMAC/s counts the "
        "multiply-adds of a prompt's matrix products; its limit is the widest 8-bit instruction "
        "that hotloop has for them here, on registers.",
        "dim",
    )


def _table(*columns: str) -> Table:
    """The first two columns to the left, numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i > 1 else "left", no_wrap=True)
    return table


def _speeds(comparison: Comparison) -> Table:
    table = _table(
        "workload", "engine", "threads", "tok/s", "spread", "×", "rate", "limit", "share"
    )
    last = None
    for row in comparison.rows:
        if last is not None and last != (row.workload, row.threads):
            table.add_section()
        last = (row.workload, row.threads)
        table.add_row(row.workload.name, row.engine, str(row.threads), *_numbers(comparison, row))
    return table


def _numbers(comparison: Comparison, row: Row) -> list[str]:
    ratio = comparison.ratio(row)
    return [
        f"{row.tok_s.median:.1f}",
        f"{row.tok_s.low:.0f}–{row.tok_s.high:.0f}"
        if row.tok_s.low >= 100
        else f"{row.tok_s.low:.1f}–{row.tok_s.high:.1f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{comparison.rate(row):,.1f} {row.workload.unit}",
        f"{comparison.limit(row):,.1f}",
        f"{100 * comparison.share(row):.0f}%",
    ]


def _starts(starts: Sequence[FirstToken]) -> Table:
    table = _table("first token", "engine", "threads", "seconds", "peak MB", "per file")
    for start in starts:
        table.add_row(
            start.model,
            f"{start.engine} {start.state}".rstrip(),
            str(start.threads),
            f"{start.seconds:.2f}",
            f"{start.peak_bytes / 1e6:,.0f}",
            f"{start.peak_bytes / start.file_bytes:.2f}",
        )
    return table
