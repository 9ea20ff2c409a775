"""Every HOTLOOP_* environment variable, declared once.

`hotloop env` lists them. A variable that starts with HOTLOOP_ and is not declared here is an
error with a suggestion, so that a misspelt setting never passes in silence.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hotloop.util.errors import SettingError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: its name, how its text is read, its default and its help."""

    name: str
    parse: Callable[[str], T]
    default: T
    help: str

    def get(self) -> T:
        """The value now; raises `SettingError` where the text cannot be read."""
        text = os.environ.get(self.name)
        if text is None or text == "":
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"{self.name}={text!r}: {error}; {self.help}.") from None


def _bounded(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low:g} and {high:g}")
        return value

    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return parse


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return parse


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotloop"


CACHE = Setting[Path | None](
    "HOTLOOP_CACHE", Path, None, "folder for models and compiled code (default: XDG cache/hotloop)"
)
CODE_CACHE = Setting[int](
    "HOTLOOP_CODE_CACHE", _whole(0, 1), 1, "1 keeps compiled code on disk, 0 compiles every time"
)
DEBUG = Setting[int](
    "HOTLOOP_DEBUG",
    _whole(0, 5),
    0,
    "1 launches and timings, 2 program, 3 each pass, 4 LLVM IR, 5 assembly (each adds to the last)",
)
TARGET = Setting[str](
    "HOTLOOP_TARGET",
    _one_of("native", "portable"),
    "native",
    "native uses this CPU's instructions, portable plain LLVM vectors",
)
THREADS = Setting[int](
    "HOTLOOP_THREADS", _whole(0, 1024), 0, "threads in the team (0: affinity and cgroup quota)"
)
WAKE = Setting[str](
    "HOTLOOP_WAKE",
    _one_of("parked", "spinning"),
    "parked",
    "whether the team sleeps or spins between launches",
)
WATCHDOG = Setting[float](
    "HOTLOOP_WATCHDOG",
    _bounded(0.1, 86400.0),
    20.0,
    "seconds without progress after which a launch is an error",
)

ALL: tuple[Setting[Any], ...] = (CACHE, CODE_CACHE, DEBUG, TARGET, THREADS, WAKE, WATCHDOG)


def cache_dir() -> Path:
    """The cache folder, not created: HOTLOOP_CACHE, else hotloop under the XDG cache folder."""
    return CACHE.get() or _default_cache()


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Raise `SettingError` for the first HOTLOOP_* variable that is not declared here."""
    known = [setting.name for setting in ALL]
    for name in environ:
        if name.startswith("HOTLOOP_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}."
            raise SettingError(f"unknown setting {name}: {hint}")
