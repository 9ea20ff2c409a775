"""The other end of `worker.py`: starts the process of an engine, and asks it to measure."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

WORKER = Path(__file__).parent / "worker.py"


class EngineError(Exception):
    """An engine that failed, with what it said."""


class MissingError(Exception):
    """An engine that is not installed; the message says so, and names the module."""


class Start(Protocol):
    """Starts an engine; `environment` is added to this process's own."""

    def __call__(
        self, engine: str, model: Path, threads: int, context: int, environment: Mapping[str, str]
    ) -> "EngineProcess": ...


class EngineProcess:
    """One engine with one model and number of threads, alive until `close`."""

    def __init__(
        self,
        engine: str,
        model: Path,
        threads: int,
        context: int,
        environment: Mapping[str, str],
        python: str = sys.executable,
    ) -> None:
        """Start it and open `model`; raises `MissingError` or `EngineError` where it cannot."""
        self.engine = engine
        try:
            self._process = subprocess.Popen(
                [python, str(WORKER), engine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env={**os.environ, **environment},
            )
        except OSError as error:
            raise EngineError(f"{python} cannot be started ({error.strerror})") from None
        try:
            answer = self._ask(do="open", model=str(model), threads=threads, context=context)
        except (EngineError, MissingError):
            self.close()
            raise
        self.version: str = answer["version"]
        self.facts: dict[str, Any] = answer["facts"]

    def decode(self, ids: list[int], n: int) -> float:
        """Seconds for `n` tokens after the prompt `ids`."""
        return float(self._ask(do="decode", ids=ids, n=n)["seconds"])

    def prompt(self, ids: list[int]) -> float:
        """Seconds to read `ids`."""
        return float(self._ask(do="prompt", ids=ids)["seconds"])

    def peak_bytes(self) -> int:
        """The most memory that the process has had resident so far, mapped files included."""
        return int(self._ask(do="memory")["peak"])

    def close(self) -> None:
        """End the process, and wait for that."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (BrokenPipeError, ValueError):  # ValueError: closed by us
            line = ""
        if not line:
            raise EngineError(f"{self.engine} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise MissingError(f"not installed (no module {answer['missing']!r})")
        if "error" in answer:
            raise EngineError(f"{self.engine}: {answer['error']}")
        return answer
