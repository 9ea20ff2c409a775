"""hotloop ir: the program as text, after any pass."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options
from hotloop.cli.progress import progress_bar
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from hotloop.ir.graph import Graph


def ir(
    argument: options.ModelArgument = None,
    model: options.ModelOption = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="PASS", help="The pass to stop after (default: the last one)."
        ),
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Print the graph that the passes start from.")
    ] = False,
    prefill: Annotated[
        bool, typer.Option("--prefill", help="The program that reads prompts, not the decode step.")
    ] = False,
    threads: options.Threads = None,
    context: options.Context = None,
    schedule: options.Schedule = "tokens",
    activations: options.Activations = "q8",
    kv_cache: options.KvCache = None,
    quantize: options.Quantize = None,
) -> None:
    """Print the program as text, after any pass.

    The text parses back to the same program. No weight is read, and no machine code made.
    """
    from hotloop.compiler import compile_graph
    from hotloop.ir.program import Program
    from hotloop.ir.text import text
    from hotloop.machine.host import available_threads, host

    if graph and after is not None:
        raise UsageError("--graph is what comes before all passes: give it or --after, not both.")
    chosen = options.model_name(argument, model)
    made = _graph(chosen, context, activations, kv_cache, quantize, prefill)
    if graph:
        _print(text(made))
        return
    stages: dict[str, Program] = {}

    def keep(name: str, program: Program) -> None:
        stages[name.replace(" ", "-")] = program

    machine = host(threads or available_threads())
    final = compile_graph(made, machine, schedule, after_pass=keep).program
    if after is not None and after not in stages:
        raise UsageError(
            f"schedule {schedule} has no pass {after!r}; its passes are {', '.join(stages)}."
        )
    _print(text(final if after is None else stages[after]))


def _graph(
    name: str | None,
    context: int | None,
    activations: str,
    kv_cache: str | None,
    quantize: str | None,
    prefill: bool,
) -> "Graph":
    from hotloop.api import DEFAULT_CONTEXT
    from hotloop.frontends.decoder import Step
    from hotloop.frontends.models import decoder
    from hotloop.frontends.open_file import open_model
    from hotloop.frontends.quantised import quantised
    from hotloop.frontends.store import resolve
    from hotloop.runtime.session import prompt_block

    with progress_bar() as progress:
        made = decoder(open_model(resolve(name, progress)))
    if quantize is not None:
        made = quantised(made, quantize)
    length = min(context or DEFAULT_CONTEXT, made.config.context)
    tokens = prompt_block(made.config) if prefill else 1
    step = Step(tokens, length, activations, head=not prefill, kv_cache=kv_cache)
    return made.graph(step)


#: What is coloured on a terminal.
_STYLES = (
    (
        r"(?<![%@.\w])(graph|program|kernel|stage|part|each|loop|call|input|output|weight|state|"
        r"constant|invariant|stacked|variant|carried|yield|feedback|until|after|barrier|prefetch|tile|next|buffers|"
        r"launch)\b(?!\()",
        "bold",
    ),
    (r"(?<![%@.\w])[a-z]\w*(?=\()", "blue"),
    (r"\b[a-z]\w*\[[\d,]*\]", "green"),
    (r"@[\w.]+", "magenta"),
    (r"%[\w./{}-]+", "cyan"),
)


def _print(text: str) -> None:
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console

    Console(soft_wrap=True).print(highlighted(text), end="")


def highlighted(text: str) -> "Text":
    """IR text with colours."""
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    return styled
