"""A benchmark's results as tables for a terminal."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hotloop.bench.fingerprint import Fingerprint
from hotloop.bench.profile import ProfileResult
from hotloop.bench.result import BenchResult, FirstToken, RungResult, Samples
from hotloop.report.profile_text import profile_table


def render(result: BenchResult) -> Iterator[RenderableType]:
    yield Text.assemble(
        (result.model, "bold"), f"  {result.threads} threads, {result.activations} activations"
    )
    yield from _machine(result.machine)
    yield _ladder(result)
    yield ""
    yield _first_tokens(result)
    yield ""
    yield _notes(result)


def render_profile(result: ProfileResult) -> Iterator[RenderableType]:
    yield Text.assemble(
        (result.model, "bold"),
        f"  {result.threads} threads, {result.activations} activations, rung {result.schedule}",
    )
    yield from _machine(result.machine)
    yield profile_table(result.profile)
    yield ""
    yield _profile_notes(result)


def _machine(machine: Fingerprint) -> Iterator[str]:
    yield f"{machine.cpu}, {machine.cores} cores · {machine.kernel} · Python {machine.python}"
    yield f"hotloop {machine.hotloop}, llvmlite {machine.llvmlite} · {machine.date}"
    yield ""


def _table(*columns: str) -> Table:
    """The first column to the left, numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _ladder(result: BenchResult) -> Table:
    table = _table(
        "rung", "threads", "tok/s", "ms/token", "spread", "GB/s", "share", "launches", "syncs"
    )
    for wake, rungs in (("parked", result.rungs), ("spinning", result.spinning)):
        for name, rung in rungs.items():
            between = "–" if name not in result.spinning else wake
            table.add_row(name, between, *_numbers(result, rung))
        table.add_section()
    table.add_row("plain read", "", "", "", "", f"{result.read_gbps.median:.1f}", "100%", "", "")
    return table


def _numbers(result: BenchResult, rung: RungResult) -> list[str]:
    return [
        f"{rung.tok_s:.1f}",
        f"{rung.ms.median:.2f}",
        _spread(rung.ms),
        f"{rung.gbps:.1f}",
        f"{100 * result.share(rung):.0f}%",
        f"{rung.launches:.3g}" if rung.launches < 1 else f"{rung.launches:,.0f}",
        f"{rung.syncs:,}",
    ]


def _spread(samples: Samples) -> str:
    return f"{samples.low:.2f}–{samples.high:.2f}"


def _first_tokens(result: BenchResult) -> Table:
    table = _table("first token, s", "start", "load", "pack", "compile", "prompt", "total")
    rows = (("cold", result.first_token), ("code cached", result.first_token_cached))
    for name, parts in rows:
        table.add_row(name, *_seconds(parts))
    return table


def _seconds(parts: FirstToken) -> list[str]:
    values = (parts.start, parts.load, parts.pack, parts.compile, parts.prompt, parts.total)
    return [f"{value:.2f}" for value in values]


def _notes(result: BenchResult) -> Text:
    megabytes = result.bytes_per_token / 1e6
    read, prompt = result.read_gbps, result.prompt_tok_s
    dram = result.read_gbps_dram.median
    text = (
        f"Prompt: {prompt.median:.0f} tok/s ({prompt.low:.0f}–{prompt.high:.0f}) for "
        f"{result.prompt_tokens} tokens. "
        f"GB/s and share count the {megabytes:.1f} MB of weights that a token reads. "
        f"100% is a plain read of as many bytes by the same threads, in the same rounds: "
        f"{read.median:.1f} GB/s ({read.low:.1f}–{read.high:.1f}). A buffer of "
        f"{result.dram_bytes / 1e6:.0f} MB reads at {dram:.1f} GB/s; where that is less, a cache "
        f"holds a part of the weights. Medians of {result.rounds} interleaved rounds of "
        f"{result.tokens} tokens from position {result.position}; spread is lowest to highest. "
        "Parked threads sleep between launches, and each launch wakes them; spinning ones burn "
        "a core while they wait."
    )
    return Text(text, "dim")


def _profile_notes(result: ProfileResult) -> Text:
    read, plain, profiled = result.read_gbps, result.plain_ms, result.profiled_ms
    text = (
        f"Microseconds per token, means over {result.profile.tokens} tokens from position "
        f"{result.position} and over the threads. Each thread claims its first tile and asks for "
        "its weights, waits for what it reads, computes what every tile needs (each), works on "
        "tiles. GB/s: the weights of the stage by the time from the first thread at work to the "
        f"last one done; a plain read of all of them reaches {read.median:.1f} "
        f"({read.low:.1f}–{read.high:.1f}). A token takes {plain.median:.2f} ms without stamps "
        f"({_spread(plain)}), with them {profiled.median:.2f} ({_spread(profiled)}): "
        f"{result.overhead:+.1%} in the median of "
        f"{result.rounds} interleaved rounds. The table is the round of median time."
    )
    return Text(text, "dim")
