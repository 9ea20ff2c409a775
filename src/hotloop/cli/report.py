"""hotloop report: a page that shows what the compiler did, and what it is worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.files import write_text
from hotloop.cli.loading import load_model
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from hotloop.report.page.data import Report

#: How often to measure.
ROUNDS = 3


def report(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The page.", show_default="report.html"),
    ] = None,
    machine: Annotated[
        str,
        typer.Option("-M", "--machine", help="A name of hotloop machines, or a TOML file."),
    ] = "host",
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FILE", help="The timelines as PNG.", show_default=False),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="The timelines as SVG.", show_default=False),
    ] = None,
    threads: options.Threads = None,
    context: Annotated[
        int | None,
        typer.Option(
            "-c",
            "--context",
            min=1,
            help="Positions in the KV cache (default: 1024 measured, 4096 simulated).",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("-b", "--batch", min=1, help="Sequences at once, where simulated.")
    ] = 1,
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often to measure.")] = ROUNDS,
) -> None:
    """Write a page: passes, timelines of all rungs, roofline, what-if.

    Measured where the model has weights and the machine is this host, simulated otherwise. The page
    needs no network.
    """
    from hotloop.frontends.config_only import bundled
    from hotloop.report.page.fill import html

    name = options.model_name(argument, model)
    no_weights = name is not None and (name in bundled() or name.endswith(".json"))
    if machine == "host" and not no_weights:
        if batch != 1:
            raise UsageError("what is measured is one sequence; -b/--batch goes with --machine.")
        made = _measured(name, threads, context, activations, kv_cache, rounds)
    else:
        if kv_cache is not None or (activations, rounds) != ("q8", ROUNDS):
            raise UsageError(
                "--activations, --kv-cache and --rounds are about what is measured; here it is "
                "simulated."
            )
        made = _predicted(name, machine, threads, context, batch)
    wanted = out or (None if png or svg else Path("report.html"))
    if wanted is not None:
        write_text(wanted, html(made))
    for path, kind in ((png, "png"), (svg, "svg")):
        if path is not None:
            from hotloop.report.plot import plot

            plot(made, path, kind)
    files = [str(path) for path in (wanted, png, svg) if path is not None]
    stdout().print(f"wrote {', '.join(files)}", markup=False, highlight=False, soft_wrap=True)


def _measured(
    name: str | None,
    threads: int | None,
    context: int | None,
    activations: str,
    kv_cache: str | None,
    rounds: int,
) -> "Report":
    from hotloop.bench.report import measured_report

    with (
        load_model(
            name, threads, "tokens", activations, context or 1024, kv_cache=kv_cache
        ) as loaded,
        progress_bar() as progress,
    ):
        return measured_report(loaded, rounds, progress=progress)


def _predicted(
    name: str | None, machine: str, threads: int | None, context: int | None, batch: int
) -> "Report":
    from hotloop.backends.dataflow.work import Workload
    from hotloop.compiler import SCHEDULES
    from hotloop.predict.cpu import UNPROBED
    from hotloop.predict.host import HOST, find_machine, host_kernels
    from hotloop.predict.models import open_shapes
    from hotloop.predict.prediction import Programs, team
    from hotloop.predict.report import predicted_report

    if name is None:
        raise UsageError("give a MODEL to simulate: a bundled config, or a model as for run.")
    with progress_bar() as progress:
        hardware = find_machine(machine, progress=progress)
    programs = Programs(open_shapes(name), context or 4096, team(hardware, threads))
    kernels = UNPROBED
    if machine == HOST:
        load = Workload(programs.context, batch)
        shapes = [programs.shape(rung, load) for rung in SCHEDULES]
        with progress_bar() as progress:
            kernels = host_kernels(shapes, programs.cores, progress)
    return predicted_report(programs, hardware, batch, kernels)
