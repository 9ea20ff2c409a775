"""hotloop bench: the ladder on this machine, next to what its memory can do."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import print_parts, stdout
from hotloop.cli.files import write_text
from hotloop.cli.loading import load_model
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError

ALL_RUNGS = "ops,fused,looped,pipelined,tokens"


def bench(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    threads: options.Threads = None,
    context: options.Context = 1024,
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
    rungs: Annotated[
        str, typer.Option("--rungs", metavar="NAMES", help="Which rungs, separated by commas.")
    ] = ALL_RUNGS,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often to measure.")] = 5,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens per measurement.")] = 64,
    as_json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write JSON there; -: to stdout, no table."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Where the time of a token goes, stage by stage.")
    ] = False,
    schedule: options.Schedule = "tokens",
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="With --profile: some tokens as a trace for Perfetto.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure the ladder, and its share of the memory's speed.

    With --profile, one rung from inside: the time of each stage.
    """
    from hotloop.bench.ladder import bench as measure
    from hotloop.bench.profile import measure as measure_profile
    from hotloop.bench.table import render, render_profile
    from hotloop.compiler import SCHEDULES

    if not profile and (trace is not None or schedule != "tokens"):
        raise UsageError("--trace and --schedule go with --profile; choose rungs with --rungs.")
    if profile and rungs != ALL_RUNGS:
        raise UsageError("--profile looks at one rung: choose it with --schedule, not --rungs.")
    names = [name for name in rungs.split(",") if name]
    unknown = [name for name in names if name not in SCHEDULES]
    if unknown or not names:
        raise UsageError(f"--rungs {rungs!r}: choose from {', '.join(SCHEDULES)}.")
    name = options.model_name(argument, model)
    with (
        load_model(
            name, threads, schedule, activations, context, kv_cache=kv_cache, quantize=quantize
        ) as loaded,
        progress_bar() as progress,
    ):
        if profile:
            profiled = measure_profile(loaded, rounds, tokens, progress)
            values, parts = profiled.to_json(), render_profile(profiled)
            if trace is not None:
                write_text(trace, json.dumps(profiled.trace))
        else:
            ladder = measure(loaded, names, rounds, tokens, progress)
            values, parts = ladder.to_json(), render(ladder)
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if as_json == "-":
        sys.stdout.write(text)
        return
    print_parts(stdout(), parts)
    if as_json is not None:
        write_text(Path(as_json), text)
