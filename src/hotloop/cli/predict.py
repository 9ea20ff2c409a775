"""hotloop predict: how fast a model would be on a machine."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.files import write_text
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError

DRAFT_TOKENS = 5
ACCEPTANCE = 0.8


def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A bundled config (llama-3.1-8b, …), a config.json, or a model as for run.",
            show_default=False,
        ),
    ],
    machine: Annotated[
        str, typer.Option("-M", "--machine", help="A name of hotloop machines, or a TOML file.")
    ] = "host",
    context: Annotated[
        int, typer.Option("-c", "--context", min=1, help="Positions that a token attends to.")
    ] = 4096,
    batch: Annotated[int, typer.Option("-b", "--batch", min=1, help="Sequences at once.")] = 1,
    threads: options.Threads = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="FORMAT", help="Store a config's matrices like this."),
    ] = None,
    schedule: Annotated[
        Literal["ops", "library", "fused", "looped", "pipelined", "tokens"] | None,
        typer.Option("--schedule", help="What is launched (default: as the machine does it)."),
    ] = None,
    orchestration: Annotated[
        Literal["hardware", "software"],
        typer.Option("--orchestration", help="Who issues the calls: the machine, or its host."),
    ] = "hardware",
    what_if: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a number of the machine."),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("--draft", metavar="MODEL", help="Speculative decoding with this draft."),
    ] = None,
    draft_tokens: Annotated[
        int, typer.Option("--draft-tokens", min=1, help="With --draft: tokens per round.")
    ] = DRAFT_TOKENS,
    acceptance: Annotated[
        float,
        typer.Option("--acceptance", min=0.0, max=1.0, help="With --draft: part that is right."),
    ] = ACCEPTANCE,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a step as a trace for Perfetto.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict a token's time, on this machine or on another.

    On host, the kernels that the model needs are probed first, and kept for a day.
    """
    from hotloop.backends.dataflow.simulate import Mode
    from hotloop.backends.dataflow.work import Workload
    from hotloop.predict import prediction, table
    from hotloop.predict.cpu import UNPROBED, read_rate
    from hotloop.predict.host import HOST, find_machine, host_kernels
    from hotloop.predict.models import open_shapes
    from hotloop.report.simulated import timeline_trace

    if draft is None and (draft_tokens, acceptance) != (DRAFT_TOKENS, ACCEPTANCE):
        raise UsageError("--draft-tokens and --acceptance go with --draft.")
    if draft is not None and schedule is not None:
        raise UsageError("--draft is predicted as the machine runs models; leave --schedule out.")
    with progress_bar() as progress:
        found = find_machine(machine, progress=progress)
    if orchestration == "software" and found.kind == "cpu":
        raise UsageError(f"{found.name} is its own host; leave --orchestration out.")
    hardware = found.with_settings(_settings(what_if or []))
    mode = Mode(software=orchestration == "software")
    team = prediction.team(hardware, threads)
    programs = prediction.Programs(open_shapes(model, weights), context, team)
    small = (
        None if draft is None else prediction.Programs(open_shapes(draft, weights), context, team)
    )
    kernels = UNPROBED
    if machine == HOST:
        load = Workload(context, batch)
        shapes = prediction.needed_shapes(programs, hardware, load, schedule)
        if small is not None:
            shapes += prediction.needed_shapes(small, hardware, load)
            shapes += prediction.needed_shapes(
                programs, hardware, Workload(context, batch, draft_tokens + 1)
            )
        with progress_bar() as progress:
            kernels = host_kernels(shapes, team, progress)
        rates = [read_rate(each, team, shapes[0].nbytes) for each in (hardware, found)]
        kernels = kernels.faster(rates[0] / rates[1])  # what --set makes of it
    values: dict[str, object] = {}
    if small is None:
        predicted = prediction.predict(
            programs, hardware, batch=batch, schedule=schedule, mode=mode, kernels=kernels
        )
    else:
        speculation = prediction.Speculation(draft_tokens, acceptance)
        tok_s, predicted = prediction.predict_speculative(
            programs, small, speculation, hardware, batch=batch, mode=mode, kernels=kernels
        )
        values = {"speculative_tok_s": tok_s, "speculative_speedup": tok_s / predicted.tok_s}
    if trace is not None:
        step = prediction.recorded(programs, hardware, predicted, mode)
        write_text(trace, json.dumps(timeline_trace(step, f"{predicted.model} on {machine}")))
    if as_json:
        print(json.dumps(predicted.to_json() | values, indent=2))
        return
    console = stdout()
    console.print(f"{predicted.model} on {hardware.title}")
    console.print()
    console.print(table.prediction_table(predicted))
    if values:
        console.print(
            f"With {draft}, {draft_tokens} tokens a round, {acceptance:.0%} right: "
            f"{values['speculative_tok_s']:,.1f} tokens per second, "
            f"{values['speculative_speedup']:.2f}×."
        )


def _settings(texts: list[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text!r}: write FIELD=VALUE, as in memory_bandwidth='2 TB/s'.")
        settings[name.strip()] = value.strip()
    return settings
