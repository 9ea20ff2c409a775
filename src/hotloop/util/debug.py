"""The debug ladder: what HOTLOOP_DEBUG asks for goes to stderr.

1 timings of launches · 2 the program · 3 the program after each pass · 4 LLVM IR · 5 assembly;
each level adds to the one before.
"""

import sys
from collections.abc import Callable

from hotloop.util import settings

TIMINGS, PROGRAM, PASSES, LLVM, ASSEMBLY = range(1, 6)


def debug(level: int, text: Callable[[], str]) -> None:
    """Print the text, which is made only then, where the setting asks for `level` or more."""
    if settings.DEBUG.get() >= level:
        print(text(), file=sys.stderr, flush=True)
