"""hotloop diff: where machine code and interpreter part."""

from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.loading import load_model
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotloop.api import Model
    from hotloop.report.diff import Difference

DIFFERENT = 1
"""Exit code where anything is beyond tolerance."""
TOLERANCE = 1e-4
"""Of the largest value of a tensor: float32 sums in another order stay a hundred times below."""
WORST = 8
"""Rows of the table of worst values."""


def diff(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    prompt: Annotated[
        str, typer.Option("-p", "--prompt", help="The text whose tokens are run.")
    ] = "The sky is blue.",
    ids: Annotated[
        str | None,
        typer.Option("--ids", metavar="N,N…", help="Token ids instead of a text."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Largest error, relative to the tensor.")
    ] = TOLERANCE,
    threads: options.Threads = None,
    context: options.Context = 256,
    schedule: options.Schedule = "tokens",
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
) -> None:
    """Find the first op where machine code and NumPy part.

    The ops are compared one by one (rung ops); then the rung of --schedule must give the same
    logits bit for bit. Exit code 1 where one of the two does not hold.
    """
    from hotloop.report.diff import compare

    name = options.model_name(argument, model)
    with load_model(
        name, threads, "ops", activations, context, kv_cache=kv_cache, quantize=quantize
    ) as loaded:
        tokens = loaded.prompt_ids(prompt) if ids is None else _parse_ids(ids)
        found = compare(loaded, tokens)
        same = _ops_verdict(found, tolerance)
        if schedule != "ops":
            same = _rung_verdict(loaded, schedule, tokens) and same
    if not same:
        raise typer.Exit(DIFFERENT)


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--ids {text!r}: give token ids, separated by commas.") from None


def _ops_verdict(found: "Sequence[Difference]", tolerance: float) -> bool:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("position", "value", "op", "error", "element", "compiled", "meaning"):
        table.add_column(column, justify="left" if column in ("value", "op") else "right")
    for worst in sorted(found, key=lambda d: -d.error)[:WORST]:
        table.add_row(
            str(worst.position),
            f"%{worst.value}",
            worst.op.name,
            f"{worst.error:.2g}",
            ",".join(map(str, worst.at)),
            f"{worst.compiled:.6g}",
            f"{worst.meaning:.6g}",
        )
    console = stdout()
    console.print(table)
    console.print()
    first = next((d for d in found if not d.error <= tolerance), None)
    if first is None:
        print(f"{len(found)} values are within {tolerance:g} of their meaning.")
        return True
    print(
        f"The first value beyond {tolerance:g}, at position {first.position}:\n"
        f"  %{first.value} = {first.op.name}({', '.join(f'%{o}' for o in first.op.operands)})\n"
        f"  element {list(first.at)} is {first.compiled:.7g}, and should be {first.meaning:.7g}."
    )
    return False


def _rung_verdict(model: "Model", schedule: str, tokens: list[int]) -> bool:
    import numpy as np

    expected = model.logits(tokens)
    got = model.with_schedule(schedule).logits(tokens)
    wrong = np.flatnonzero((expected.view(np.uint32) != got.view(np.uint32)).any(axis=1))
    if len(wrong) == 0:
        print(f"schedule {schedule}: the same logits as ops, bit for bit.")
        return True
    error = np.abs(expected[wrong[0]] - got[wrong[0]]).max()
    print(
        f"schedule {schedule}: other logits than ops at {len(wrong)} of {len(tokens)} positions, "
        f"first at {wrong[0]} (by up to {error:.3g})."
    )
    return False
