"""The entry point: the list of commands, and what becomes of their errors."""

import io
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from hotloop import __version__
from hotloop.cli import (
    bench,
    cache,
    chat,
    convert,
    diff,
    env,
    evaluate,
    explain,
    inspect,
    ir,
    load,
    machines,
    predict,
    pull,
    report,
    run,
    serve,
    validate,
    wrong_value,
)
from hotloop.util import settings
from hotloop.util.errors import HotloopError, OutOfMemoryError, SettingError

EXIT_BUG = 70
"""An exception that nobody meant: EX_SOFTWARE of BSD's sysexits.h."""

app = typer.Typer(
    name="hotloop",
    help="Run language models fast on your own CPU: a whole generation is one launch.",
    epilog="Settings that hold for every command are environment variables: see hotloop env.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (
    run.run,
    chat.chat,
    pull.pull,
    ir.ir,
    explain.explain,
    inspect.inspect,
    convert.convert,
    bench.bench,
    serve.serve,
    load.load,
    machines.machines,
    predict.predict,
    validate.validate,
    report.report,
    diff.diff,
    env.env,
):
    app.command(no_args_is_help=False)(command)
app.command("eval")(evaluate.evaluate)
app.add_typer(cache.app, name="cache")


@app.callback(invoke_without_command=True)
def hotloop(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and leave."),
) -> None:
    if version:
        print(f"hotloop {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (`hotloop.util.errors` lists them).

    Text goes to stdout, everything else to stderr. A `HotloopError` is one sentence there; with
    HOTLOOP_DEBUG=1 the traceback stands above it.
    """
    _never_fail_to_print()
    try:
        _check_settings()
        code = app(args=argv, prog_name="hotloop", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _fail(wrong_value.message(error), error.exit_code)
    except typer.Abort:
        return _fail("input ended before the command was complete.", 1)
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except KeyboardInterrupt:
        return 130
    except HotloopError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        text = "out of memory; close other programs, or use a smaller model or -c/--context."
        return _fail(text, OutOfMemoryError.exit_code)
    except Exception as error:  # the last line of defence: users see a sentence, not a traceback
        hint = "this is a bug in hotloop; set HOTLOOP_DEBUG=1 to see where, and please report it."
        return _fail(f"{type(error).__name__}: {error}: {hint}", EXIT_BUG)


def _fail(message: str, code: int) -> int:
    if _debugging():
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    return code


def _check_settings() -> None:
    settings.check_environment()
    for setting in settings.ALL:
        setting.get()


def _debugging() -> bool:
    try:
        return settings.DEBUG.get() >= 1
    except SettingError:
        return False


def _never_fail_to_print() -> None:
    """Characters that the terminal's encoding lacks become `?`, rather than an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Nobody reads stdout any more: keep the interpreter from complaining when it closes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
