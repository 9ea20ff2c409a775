"""hotloop validate: published numbers of machines next to what hotloop predicts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

#: How often to measure.
ROUNDS = 7


def validate(
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity/--no-sensitivity",
            help="Vary each uncertain input, too; takes a minute.",
        ),
    ] = True,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            metavar="MODEL",
            help="Instead, measure this model here (repeatable).",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            "-t",
            "--threads",
            min=1,
            help="With --measure: threads in the team (repeatable; default: 1, and all).",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="With --measure: how often.")
    ] = ROUNDS,
    as_json: options.Json = False,
) -> None:
    """Compare published numbers with predicted ones.

    With --measure, the predicted time of every rung on this machine with the measured one.
    """
    from hotloop.predict import validation

    if measure:
        if not sensitivity:
            raise UsageError("--no-sensitivity is about published numbers; leave --measure out.")
        _measure(measure, threads, rounds, as_json)
        return
    if threads or rounds != ROUNDS:
        raise UsageError("-t/--threads and --rounds go with --measure.")
    with progress_bar() as progress:
        results = validation.validate(sensitivity=sensitivity, progress=progress)
    if as_json:
        print(json.dumps([result.to_json() for result in results], indent=2, ensure_ascii=False))
        return
    table = _table(validation.COLUMNS, ("published", "simulated", "error"))
    for result in results:
        table.add_row(*validation.cells(result))
    stdout().print(table)


def _measure(models: list[str], threads: list[int] | None, rounds: int, as_json: bool) -> None:
    from rich.text import Text

    from hotloop.bench.predicted import errors, hold
    from hotloop.machine.host import available_threads

    threads = threads or sorted({1, available_threads()})
    with progress_bar() as progress:
        outcomes = hold(models, threads, rounds, progress)
    median, largest = errors(outcomes)
    if as_json:
        values = {
            "median_error": median,
            "largest_error": largest,
            "outcomes": [asdict(each) | {"error": each.error} for each in outcomes],
        }
        print(json.dumps(values, indent=2))
        return
    numbers = ("threads", "position", "batch", "measured ms", "predicted ms", "error")
    for model, of_model in groupby(outcomes, key=lambda each: each.point.model):
        table = _table((*numbers[:3], "rung", *numbers[3:]), numbers)
        for each in of_model:
            table.add_row(
                str(each.point.threads),
                f"{each.point.position:,}",
                str(each.point.batch),
                each.rung,
                f"{each.measured:.2f}",
                f"{each.predicted:.2f}",
                f"{each.error:+.0%}",
            )
        stdout().print(Text(f"\n{model}"), table)
    stdout().print(f"\nMedian error {median:.0%}, largest {largest:.0%}.")


def _table(columns: Sequence[str], numbers: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table
