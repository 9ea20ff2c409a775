"""hotloop validate: published numbers of machines next to what hotloop predicts."""

import json
from typing import Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.progress import progress_bar


def validate(
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity/--no-sensitivity",
            help="Vary each uncertain input, too; takes a minute.",
        ),
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Compare published numbers with predicted ones, and say what each depends on."""
    from rich import box
    from rich.table import Table

    from hotloop.predict import validation

    with progress_bar() as progress:
        results = validation.validate(sensitivity=sensitivity, progress=progress)
    if as_json:
        print(json.dumps([result.to_json() for result in results], indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in validation.COLUMNS:
        numbers = column in ("published", "simulated", "error")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for result in results:
        table.add_row(*validation.cells(result))
    stdout().print(table)
