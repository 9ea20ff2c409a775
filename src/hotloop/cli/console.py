"""The rich console for stdout: colours on a terminal only, and no line cut off in a pipe."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 100
"""Columns of text that goes to a file or another program."""
MOST_WIDTH = 1000


def stdout() -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_parts(console: "Console", parts: "Iterable[RenderableType]") -> None:
    """Text in the console's width; tables as wide as they are, so that no number is cut."""
    from rich.table import Table

    width = console.width
    for part in parts:
        if isinstance(part, Table):
            anything = console.options.update(max_width=MOST_WIDTH)
            console.width = max(width, console.measure(part, options=anything).maximum)
        console.print(part)
        console.width = width
