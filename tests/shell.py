"""For tests of the command line: a stand-in for a model, and a shell to run `main` in."""

import io
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hotloop.api import Timings, Token
from hotloop.cli.main import main
from hotloop.runtime.session import Speculation


@dataclass
class FakeModel:
    """Answers every prompt with `reply`, and remembers what it was asked."""

    reply: list[str] = field(default_factory=lambda: ["Hel", "lo", "."])
    has_chat_template: bool = True
    failure: BaseException | None = None
    loaded: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    path = Path("fake.gguf")
    timings = Timings(0.1, 0.2, 0.3, True)
    finish_reason = "stop"
    speculate = 0
    speculation = Speculation(steps=4, drafted=5, accepted=2)
    cancelled = False

    def load(self, name: str | None, **options: Any) -> "FakeModel":
        self.loaded = {"name": name, **options}
        return self

    def __enter__(self) -> "FakeModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.loaded["closed"] = True

    def generate(self, text: str, **options: Any) -> Generator[Token, None, None]:
        self.asked.append(("generate", text, options))
        return self._tokens()

    def chat(self, messages: list[dict[str, str]], **options: Any) -> Generator[Token, None, None]:
        self.asked.append(("chat", [dict(message) for message in messages], options))
        return self._tokens()

    def _tokens(self) -> Generator[Token, None, None]:
        try:
            for i, word in enumerate(self.reply):
                yield Token(i, word)
            if self.failure is not None:
                raise self.failure
        except GeneratorExit:
            self.cancelled = True
            raise


class Shell:
    """Runs `main`; `out` and `err` are what the last command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *argv: str) -> int:
        code = main(argv)
        self.out, self.err = self.capsys.readouterr()
        return code


def type_in(patch: pytest.MonkeyPatch, data: bytes, terminal: bool = False) -> None:
    """What stdin holds, from a pipe."""
    stdin = io.TextIOWrapper(io.BytesIO(data), "utf-8")
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]
    patch.setattr(sys, "stdin", stdin)
