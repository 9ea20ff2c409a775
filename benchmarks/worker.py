"""The process in which an engine lives: requests on stdin, answers on stdout, a JSON line each.

    python worker.py ENGINE          ENGINE is the name of a file in engines/

    {"do": "open", "model": path, "threads": n, "context": n}   {"version": …, "facts": {…}}
    {"do": "decode", "ids": [...], "n": n}                      {"seconds": …}
    {"do": "prompt", "ids": [...]}                              {"seconds": …}
    {"do": "memory"}                                            {"peak": bytes}

An answer may be {"error": text} instead; {"missing": module} says that the engine is not installed.
The process ends with its stdin. Everything else that an engine prints goes to stderr.
"""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO


def serve(engine: Any, requests: TextIO, answers: TextIO) -> None:
    """Answer until the requests end; `engine` is a module as `engines` describes it."""
    opened: Any = None
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if request["do"] == "open":
                opened = engine.Engine(request["model"], request["threads"], request["context"])
                answer = {"version": opened.version, "facts": opened.facts()}
            elif request["do"] == "decode":
                answer = {"seconds": opened.decode(request["ids"], request["n"])}
            elif request["do"] == "prompt":
                answer = {"seconds": opened.prompt(request["ids"])}
            else:
                answer = {"peak": peak_bytes()}
        except Exception as error:  # whatever an engine raises, the others go on
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def peak_bytes() -> int:
    """The most resident memory so far. getrusage's ru_maxrss would count the parent's, too."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def missing(name: str) -> str | None:
    """The module that the engine `name` needs and that this interpreter does not have."""
    try:
        importlib.import_module(f"engines.{name}")
    except ModuleNotFoundError as error:
        return error.name
    return None


def main(name: str) -> None:
    # Native code writes to descriptor 1, whatever sys.stdout is.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module = missing(name)
    if module is None:
        serve(importlib.import_module(f"engines.{name}"), sys.stdin, answers)
    else:
        print(json.dumps({"missing": module}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
