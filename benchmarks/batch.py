"""What company costs: several sequences decoded together, against one alone.

    python benchmarks/batch.py --rows 1,2,4,8,16
    python benchmarks/batch.py -m llama-1b-shaped-q4_0.gguf --json batch.json

Decodes as many sequences as each number says, in turns, every one from a prompt of its own.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.table import Table

from hotloop import Model, load
from hotloop.bench.fingerprint import fingerprint
from hotloop.bench.prompts import sample_ids
from hotloop.cli.console import stdout
from hotloop.cli.files import write_text
from hotloop.runtime.batch import BatchExecutor
from hotloop.runtime.executor import Row
from hotloop.runtime.sampling import Sampling
from hotloop.util.errors import HotloopError

CONTEXT = 512


@dataclass(frozen=True)
class Width:
    """`rows` sequences together: seconds per step of each round, a step being a token for each."""

    rows: int
    seconds: tuple[float, ...]

    @property
    def tokens_per_second(self) -> float:
        return self.rows / median(self.seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        with load(options.model, options.threads, context=CONTEXT) as model:
            widths = measure(model, options.rows, options.prompt, options.tokens, options.rounds)
            name = model.path.name
        if options.json:
            found = {
                "model": name,
                "machine": asdict(fingerprint()),
                "widths": [asdict(width) for width in widths],
            }
            write_text(options.json, json.dumps(found, indent=2))
    except HotloopError as error:
        sys.exit(str(error))
    stdout().print(render(name, widths))


def measure(
    model: Model, rows: Sequence[int], prompt: int, tokens: int, rounds: int
) -> list[Width]:
    """Each number of rows once a round, after one round that warms up."""
    batch = model.batch(max(rows))
    try:
        sequences = [_prepare(batch, model, at, prompt, tokens) for at in range(max(rows))]
        times: dict[int, list[float]] = {number: [] for number in rows}
        for turn in range(rounds + 1):
            for number in rows:
                started = time.perf_counter()
                batch.decode(sequences[:number], tokens, lambda new: True)
                if turn:
                    times[number].append((time.perf_counter() - started) / tokens)
    finally:
        batch.close()
    return [Width(number, tuple(seconds)) for number, seconds in times.items()]


def _prepare(batch: BatchExecutor, model: Model, at: int, prompt: int, tokens: int) -> Row:
    """A sequence in pages of its own, with its prompt read."""
    ids = [(token + at) % model.config.vocab for token in sample_ids(model.config.vocab, prompt)]
    each = -(-(prompt + tokens) // batch.page)
    table = list(range(at * each, (at + 1) * each))
    for start in range(0, prompt - 1, batch.block):
        batch.prefill(ids[start : min(start + batch.block, prompt - 1)], start, table)
    return Row(ids, prompt, prompt + tokens + 1, table, Sampling())


def render(name: str, widths: Sequence[Width]) -> Table:
    table = Table(title=f"{name}, sequences together", title_justify="left", min_width=60)
    for column in ("sequences", "ms/step", "tokens/s", "of one alone"):
        table.add_column(column, justify="right")
    for width in widths:
        table.add_row(
            str(width.rows),
            f"{median(width.seconds) * 1e3:.2f}",
            f"{width.tokens_per_second:.1f}",
            f"{width.tokens_per_second / widths[0].tokens_per_second:.2f} ×",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("-m", "--model", help="a model file or name (the default model)")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8], help="1,2,4,8")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt (32)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each sequence (32)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="where to write the numbers")
    return parser


if __name__ == "__main__":
    main()
