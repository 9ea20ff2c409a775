"""Compare hotloop with other engines on this machine: one command, from the model files on.

    python benchmarks/compare.py --json comparison.json
    python benchmarks/compare.py --models "" --threads 1,2,4 --workloads decode
    python benchmarks/compare.py --first-token --peer-python ~/llama/bin/python

Writes the 1B-shaped models that are not there yet, starts each engine in a process of its own, and
measures them in turns. Needs `pip install hotloop[bench]`; an engine that is not installed is
listed as that. The peers may live in another interpreter (--peer-python), one that was built
with other flags, or of another version.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import comparison_table
from comparison import ENGINES, Comparison, Workload, compare
from first_token import FirstToken, first_tokens
from hotloop.bench.fingerprint import fingerprint
from hotloop.cli.console import stdout
from hotloop.cli.files import write_text
from hotloop.frontends.store import models_dir, resolve
from hotloop.machine.host import available_threads
from hotloop.util.errors import HotloopError
from process import EngineError, EngineProcess
from shaped_model import FORMATS, LLAMA_1B, write

WORKLOADS = {
    "decode": Workload("decode", prompt=16, tokens=32),
    "long": Workload("decode at 4,096", prompt=4096, tokens=32),
    "prompt": Workload("prompt of 512", prompt=512),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)

    def start(
        engine: str, model: Path, threads: int, context: int, environment: Mapping[str, str]
    ) -> EngineProcess:
        python = sys.executable if engine == ENGINES[0] else options.peer_python
        return EngineProcess(engine, model, threads, context, environment, python)

    def progress(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    comparisons: list[Comparison] = []
    starts: list[FirstToken] = []
    try:
        models = [resolve(name) for name in options.models]
        models += [_shaped(options.folder, format) for format in options.formats]
        workloads = [WORKLOADS[name] for name in options.workloads]
        for model in models:
            if workloads:
                comparisons.append(
                    compare(
                        model,
                        workloads,
                        options.threads,
                        options.rounds,
                        start,
                        progress,
                        [name for name in ENGINES if name in (ENGINES[0], *options.engines)],
                    )
                )
            if options.first_token:
                progress(f"{model.name}: first token")
                starts += first_tokens(model, max(options.threads), start, options.engines)
        if options.json:
            write_text(options.json, _json(comparisons, starts, options.rounds))
    except (HotloopError, EngineError) as error:
        sys.exit(str(error))
    console = stdout()
    for part in comparison_table.render(fingerprint(), comparisons, starts, options.rounds):
        console.print(part)


def _shaped(folder: Path, format: str) -> Path:
    """The 1B-shaped model in `format`, written first where it is not there."""
    path = folder / f"llama-1b-shaped-{format}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(path, LLAMA_1B, format)
    return path


def _json(comparisons: list[Comparison], starts: list[FirstToken], rounds: int) -> str:
    result = {
        "machine": asdict(fingerprint()),
        "rounds": rounds,
        "comparisons": [comparison.to_json() for comparison in comparisons],
        "first_token": [start.to_json() for start in starts],
    }
    return json.dumps(result, indent=2) + "\n"


def _listed(choices: Sequence[str] | None = None) -> Callable[[str], list[str]]:
    """For argparse: names between commas, each one of `choices`."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        wrong = [name for name in names if choices is not None and name not in choices]
        if wrong:
            known = ", ".join(choices or ())
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {known}")
        return names

    return parse


def _counts(text: str) -> list[int]:
    """For argparse: numbers of threads between commas."""
    counts = [int(name) for name in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{min(counts)} is not a number of threads")
    return counts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare hotloop with other engines.")
    add = parser.add_argument
    add("--models", type=_listed(), default=["smollm2"], help="models to compare on: files, names")
    add("--formats", type=_listed(FORMATS), default=["Q4_0"], help="1B-shaped models to compare on")
    add("--folder", type=Path, default=models_dir() / "shaped", help="where those are kept")
    add("--workloads", type=_listed(tuple(WORKLOADS)), default=list(WORKLOADS))
    add("--engines", type=_listed(ENGINES), default=list(ENGINES), help="besides hotloop")
    add("--threads", type=_counts, default=[available_threads()], help="such as 1,2,4")
    add("--rounds", type=int, default=5)
    add("--first-token", action="store_true", help="also measure starting, and its memory")
    add("--peer-python", default=sys.executable, help="the interpreter that has the other engines")
    add("--json", type=Path, help="write all numbers there")
    return parser


if __name__ == "__main__":
    main()
