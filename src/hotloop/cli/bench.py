"""hotloop bench: the ladder on this machine, next to what its memory can do."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.files import write_text
from hotloop.cli.loading import load_model
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError


def bench(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    threads: options.Threads = None,
    context: options.Context = 1024,
    activations: options.Activations = "q8",
    rungs: Annotated[
        str, typer.Option("--rungs", metavar="NAMES", help="Which rungs, separated by commas.")
    ] = "ops,fused,looped,pipelined,tokens",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often to measure.")] = 5,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens per measurement.")] = 64,
    as_json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write JSON there; -: to stdout, no table."),
    ] = None,
) -> None:
    """Measure the ladder, and its share of the memory's speed."""
    from hotloop.bench.ladder import bench as measure
    from hotloop.bench.table import render
    from hotloop.compiler import SCHEDULES

    names = [name for name in rungs.split(",") if name]
    unknown = [name for name in names if name not in SCHEDULES]
    if unknown or not names:
        raise UsageError(f"--rungs {rungs!r}: choose from {', '.join(SCHEDULES)}.")
    name = options.model_name(argument, model)
    with (
        load_model(name, threads, "tokens", activations, context) as loaded,
        progress_bar() as progress,
    ):
        result = measure(loaded, names, rounds, tokens, progress)
    text = json.dumps(result.to_json(), indent=2, ensure_ascii=False) + "\n"
    if as_json == "-":
        sys.stdout.write(text)
        return
    console = stdout()
    for part in render(result):
        console.print(part)
    if as_json is not None:
        write_text(Path(as_json), text)
