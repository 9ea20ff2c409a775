"""The rich console for stdout: colours on a terminal only, and no line cut off in a pipe."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 100
"""Columns of tables that go to a file or another program."""


def stdout() -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)
