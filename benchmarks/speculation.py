"""What guessing buys: tokens per second with and without, where the output repeats its prompt.

    python benchmarks/speculation.py --guesses 0,3,7
    python benchmarks/speculation.py -m llama-1b-shaped-q4_0.gguf --cost

Answers requests that edit code and that summarise, greedily and in turns, with each number of
guesses a step, and checks that all answers are the same. With --cost, instead, what a step takes
that checks so many guesses, right or wrong: all that a model with random weights can tell.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.table import Table

from hotloop import Model, load
from hotloop.bench.fingerprint import fingerprint
from hotloop.bench.prompts import POSITION, sample_ids
from hotloop.cli.console import stdout
from hotloop.cli.files import write_text
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.session import Speculation
from hotloop.util.errors import HotloopError

CONTEXT = 1536

CODE = '''\
import csv
from collections import defaultdict


class Ledger:
    """Accounts and their balances, read from a file of transactions."""

    def __init__(self, path):
        self.path = path
        self.balances = defaultdict(int)
        self.rejected = []

    def read(self):
        with open(self.path) as file:
            for number, row in enumerate(csv.DictReader(file), start=1):
                try:
                    self.apply(row["account"], int(row["cents"]))
                except (KeyError, ValueError) as error:
                    self.rejected.append((number, str(error)))

    def apply(self, account, cents):
        if self.balances[account] + cents < 0:
            raise ValueError(f"{account} would be overdrawn")
        self.balances[account] += cents

    def total(self):
        return sum(self.balances.values())

    def largest(self, count):
        ordered = sorted(self.balances.items(), key=lambda item: item[1])
        return ordered[:count]
'''

REPORT = """\
The harbour of Aldmouth was closed for nineteen days this winter, longer than in any year since
records began in 1911. The harbour authority says that the storms of January moved about 40,000
cubic metres of sand into the channel, and that its only dredger was in dock for repairs when they
came. Fishing boats were sent to Port Ellis, forty kilometres to the north, and landed 310 tonnes
there that would have been sold in Aldmouth. The fish market lost a third of its winter trade, and
two of the five auction houses have given notice to their staff. The town council wants the
authority to rent a second dredger from November to March, at a cost of 1.2 million a year. The
authority answers that a stone groyne south of the entrance would keep most of the sand out, would
cost 6 million once, and could be finished before the winter after next. The fishermen's
association supports the groyne, but asks for the dredger until it is built. A public hearing will
be held in the town hall on the ninth of April, and the authority has to decide by the end of May.
"""

#: The first of the lines that an edit leaves as they are.
BEGINNING = "```python\n" + CODE[: CODE.index("        self.balances")]

#: What is asked, and how the answer begins: a model this small goes on with a file, but does not
#: start it by itself.
REQUESTS = {
    "edit: rename": (
        f"Rename the method `apply` to `book`, and give the whole file back.\n\n{CODE}",
        BEGINNING,
    ),
    "edit: fix": (
        f"`largest` returns the smallest balances. Fix it, in the whole file.\n\n{CODE}",
        BEGINNING,
    ),
    "edit: document": (
        f"Give the whole file back with a docstring in every method.\n\n{CODE}",
        BEGINNING,
    ),
    "summarise": (f"Summarise this report in three sentences.\n\n{REPORT}", ""),
    "extract": (f"List the sentences with numbers in this report.\n\n{REPORT}", "1. "),
    "rewrite": (f"Rewrite this report for children, keeping all names.\n\n{REPORT}", ""),
}


@dataclass(frozen=True)
class Result:
    """One request with one number of guesses: seconds of each round, the prompt left out."""

    request: str
    guesses: int
    tokens: int
    seconds: tuple[float, ...]
    speculation: Speculation

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / median(self.seconds)


@dataclass(frozen=True)
class Cost:
    """A step that takes in `tokens` tokens: seconds of each round."""

    tokens: int
    seconds: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        with load(options.model, options.threads, context=CONTEXT) as model:
            name = model.path.name
            models = {k: model.with_speculate(k) if k else model for k in options.guesses}
            found: Sequence[Result | Cost]
            if options.cost:
                found = costs = measure_cost(models, options.rounds)
                table = render_cost(name, costs)
            else:
                found = results = measure(models, options.tokens, options.rounds)
                table = render(name, results)
        if options.json:
            values = {
                "model": name,
                "machine": asdict(fingerprint()),
                "results": [asdict(one) for one in found],
            }
            write_text(options.json, json.dumps(values, indent=2))
    except HotloopError as error:
        sys.exit(str(error))
    stdout().print(table)


def measure(models: dict[int, Model], tokens: int, rounds: int) -> list[Result]:
    """Each request with each number of guesses once a round, after one round that warms up."""
    results = []
    for request, (words, beginning) in REQUESTS.items():
        some = next(iter(models.values()))
        text = some.render_chat([{"role": "user", "content": words}]) + beginning
        seconds: dict[int, list[float]] = {k: [] for k in models}
        answers: dict[int, list[int]] = {}
        for turn in range(rounds + 1):
            for k, model in models.items():
                answers[k], took = _answer(model, text, tokens)
                if turn:
                    seconds[k].append(took)
        first = next(iter(answers.values()))
        if any(answer != first for answer in answers.values()):
            sys.exit(f"{request}: the answers differ with the number of guesses")
        results += [
            Result(request, k, len(first), tuple(seconds[k]), model.speculation)
            for k, model in models.items()
        ]
    return results


def _answer(model: Model, text: str, tokens: int) -> tuple[list[int], float]:
    """The tokens of the answer, and the seconds that they took once the prompt was read."""
    started = 0.0
    found = []
    for token in model.generate(text, tokens):
        found.append(token.id)
        started = started or time.perf_counter()
    return found, time.perf_counter() - started


def measure_cost(models: dict[int, Model], rounds: int) -> list[Cost]:
    """Steps of so many tokens, of which all but the first are guesses."""
    steps: dict[int, Callable[[], float]] = {k + 1: _step(model) for k, model in models.items()}
    seconds: dict[int, list[float]] = {tokens: [] for tokens in steps}
    for turn in range(rounds + 1):
        for tokens, step in steps.items():
            took = min(step() for _ in range(8))
            if turn:
                seconds[tokens].append(took)
    return [Cost(tokens, tuple(each)) for tokens, each in seconds.items()]


def _step(model: Model) -> Callable[[], float]:
    session = model._session
    ids = sample_ids(model.config.vocab, POSITION + model.speculate)

    def step() -> float:
        session.start(ids[:POSITION], 1, Sampling())
        session.decode.view("token")[:] = ids[POSITION - 1 :]
        started = time.perf_counter()
        session.decode.run(1 + model.speculate)
        return time.perf_counter() - started

    return step


def render(name: str, results: Sequence[Result]) -> Table:
    table = Table(title=f"{name}, guesses checked in one step", title_justify="left")
    table.add_column("request")
    columns = ("guesses", "tokens", "tokens/s", "of none", "tokens/step", "right")
    for column in columns:
        table.add_column(column, justify="right")
    base = {r.request: r.tokens_per_second for r in reversed(results)}
    for r in results:
        seen = r.speculation
        table.add_row(
            r.request,
            str(r.guesses),
            str(r.tokens),
            f"{r.tokens_per_second:.1f}",
            f"{r.tokens_per_second / base[r.request]:.2f} ×",
            f"{seen.tokens_per_step:.2f}" if seen.steps else "1",
            f"{seen.accepted / seen.drafted:.0%}" if seen.drafted else "–",
        )
    return table


def render_cost(name: str, costs: Sequence[Cost]) -> Table:
    table = Table(title=f"{name}, a step that checks guesses", title_justify="left")
    for column in ("tokens", "ms/step", "of one token"):
        table.add_column(column, justify="right")
    for cost in costs:
        took = median(cost.seconds)
        ratio = took / median(costs[0].seconds)
        table.add_row(str(cost.tokens), f"{took * 1e3:.2f}", f"{ratio:.2f} ×")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("-m", "--model", help="a model file or name (the default model)")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--guesses", type=numbers, default=[0, 3, 7], help="0,3,7")
    parser.add_argument("--cost", action="store_true", help="what a step takes, right or wrong")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer (256)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="where to write the numbers")
    return parser


if __name__ == "__main__":
    main()
