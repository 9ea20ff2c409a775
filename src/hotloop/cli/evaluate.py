"""hotloop eval: how well a model predicts a text, and what quantisation cost it."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import print_parts, stdout
from hotloop.cli.loading import load_model
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError

WINDOW = 512
"""Tokens in a window, as most published perplexities of quantised models have it."""


def evaluate(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="The text to predict.", show_default=False),
    ] = None,
    context: Annotated[
        int, typer.Option("-c", "--context", min=2, help="Tokens in a window.")
    ] = WINDOW,
    stride: Annotated[
        int | None,
        typer.Option(
            "--stride", min=1, help="Tokens from one window to the next (default: half of one)."
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=2, help="Only so many of the text.", show_default=False),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="MODEL", help="Compare with this model.", show_default=False
        ),
    ] = None,
    against_f32: Annotated[
        bool, typer.Option("--against-f32", help="Compare with float32 activations.")
    ] = False,
    threads: options.Threads = None,
    schedule: options.Schedule = "tokens",
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
    as_json: options.Json = False,
) -> None:
    """Measure how well a model predicts a text.

    Perplexity, and with --against or --against-f32 how far the model is from another: KL
    divergence, and how often both find the same token the likeliest.
    """
    from hotloop.bench.evaluate import evaluate as measure
    from hotloop.bench.evaluate_text import render

    if text is None:
        raise UsageError("no text: give --text FILE.")
    if against is not None and against_f32:
        raise UsageError("--against and --against-f32: one comparison at a time.")
    content = _read(text)
    name = options.model_name(argument, model)
    with ExitStack() as stack:
        loaded = stack.enter_context(
            load_model(
                name, threads, schedule, activations, context, kv_cache=kv_cache, quantize=quantize
            )
        )
        reference, reference_name = None, None
        if against is not None:
            reference_name = against
            reference = stack.enter_context(
                load_model(against, threads, schedule, activations, context)
            )
        elif against_f32:
            reference_name = "f32 activations"
            reference = loaded.with_activations("f32")
        progress = stack.enter_context(progress_bar())
        result = measure(loaded, content, stride, reference, reference_name, tokens, progress)
    if as_json:
        print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
        return
    print_parts(stdout(), render(result))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start}); give a text file.") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read ({reason}); give a text file.") from None
