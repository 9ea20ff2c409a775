"""Progress of slow steps, on stderr and only for people: a bar on a terminal, else a line."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = Callable[[int, int | None, str], None]
"""(done, total or None, what): called by whatever takes long, as often as it likes."""

PATIENCE = 0.4
"""Seconds before a bar appears: what is faster needs none, nor the import of rich."""


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A `Report` for the steps inside the block; the bar disappears at its end."""
    bar: _Bar | _Lines = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield bar.report
    finally:
        bar.close()


class _Lines:
    """Not a terminal: announce downloads, which take long, and nothing else."""

    def __init__(self) -> None:
        self.announced: set[str] = set()

    def report(self, done: int, total: int | None, what: str) -> None:
        if what == "download" and what not in self.announced:
            self.announced.add(what)
            size = f" ({total / 1e6:.0f} MB)" if total else ""
            print(f"downloading the model{size} …", file=sys.stderr)

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self) -> None:
        self.start = time.monotonic()
        self.progress: Progress | None = None
        self.tasks: dict[str, TaskID] = {}

    def report(self, done: int, total: int | None, what: str) -> None:
        if self.progress is None:
            if time.monotonic() - self.start < PATIENCE:
                return
            self.progress = _rich_progress()
            self.progress.start()
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()


def _rich_progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
