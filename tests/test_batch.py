"""A batch of sequences: every one gets the tokens, and the bits, that it gets alone."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop import Model, load
from hotloop.runtime.batch import BatchExecutor
from hotloop.runtime.executor import Row
from hotloop.runtime.sampling import Sampling
from hotloop.util.errors import UsageError

DATA = Path(__file__).parent / "data"
ROWS, NEW = 5, 12
SAMPLINGS = (
    Sampling(),
    Sampling(0.8, 7, top_p=0.9),
    Sampling(repeat_penalty=1.4, repeat_last_n=-1),
    Sampling(1.2, 2**40, top_k=11, repeat_penalty=1.1),
)


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama with room for three pages."""
    folder = tmp_path_factory.mktemp("model") / "llama"
    shutil.copytree(DATA / "tiny" / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 600
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=[("q8", "f16"), ("f32", "f32"), ("q8", "q8")], ids="-".join)
def model(long_llama: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    activations, kv_cache = request.param
    with load(long_llama, 2, activations=activations, kv_cache=kv_cache) as model:
        yield model


@pytest.fixture(scope="module")
def batch(model: Model) -> BatchExecutor:
    return model.batch(ROWS, pages=11)


def prompt(length: int, model: Model) -> list[int]:
    return [random.Random(length).randrange(model.config.vocab) for _ in range(length)]


class Placed:
    """A sequence in pages of its own, its prompt read in pieces of random length."""

    def __init__(self, batch: BatchExecutor, ids: list[int], free: list[int], number: int) -> None:
        self.tokens = list(ids)
        self.prompt = len(ids)
        self.sampling = SAMPLINGS[number % len(SAMPLINGS)]
        self.table = [free.pop() for _ in range(-(-(len(ids) + NEW) // batch.page))]
        pieces, at = random.Random(number), 0
        while at < len(ids) - 1:
            few = min(pieces.randint(1, batch.block), len(ids) - 1 - at)
            batch.prefill(ids[at : at + few], at, self.table)
            at += few

    def row(self, limit: int | None = None) -> Row:
        limit = self.prompt + NEW if limit is None else limit
        return Row(list(self.tokens), self.prompt, limit, self.table, self.sampling)

    @property
    def new(self) -> list[int]:
        return self.tokens[self.prompt :]


def decode(batch: BatchExecutor, placed: list[Placed], steps: int, limit: int | None = None) -> int:
    """One launch; how often it delivered."""
    deliveries = 0

    def deliver(new: list[list[int]]) -> bool:
        nonlocal deliveries
        deliveries += 1
        for sequence, tokens in zip(placed, new, strict=True):
            sequence.tokens += tokens
        return True

    batch.decode([sequence.row(limit) for sequence in placed], steps, deliver)
    return deliveries


def alone(model: Model, sequence: Placed, count: int = NEW) -> list[int]:
    s = sequence.sampling
    options = (s.temperature, s.seed, s.top_k, s.top_p, s.min_p, s.repeat_penalty, s.repeat_last_n)
    ids = sequence.tokens[: sequence.prompt]
    return [token.id for token in model.generate(ids, count, *options, stop_ids=())]


@pytest.mark.parametrize("lengths", [(3,), (1, 255), (64, 9, 1), (2, 256, 257, 70, 33)])
def test_tokens_are_those_of_each_alone(
    model: Model, batch: BatchExecutor, lengths: tuple[int, ...]
) -> None:
    free = random.Random(len(lengths)).sample(range(batch.pages), batch.pages)
    placed = [Placed(batch, prompt(n, model), free, i) for i, n in enumerate(lengths)]
    decode(batch, placed, NEW)
    for sequence in placed:
        assert sequence.new == alone(model, sequence)


def test_rows_may_come_and_go_between_launches(model: Model, batch: BatchExecutor) -> None:
    free = list(range(batch.pages))
    placed = [Placed(batch, prompt(40 + n, model), free, n) for n in range(4)]
    order = random.Random(3)
    while any(len(sequence.new) < NEW for sequence in placed):
        rest = [sequence for sequence in placed if len(sequence.new) < NEW]
        chosen = order.sample(rest, order.randint(1, len(rest)))
        decode(batch, chosen, order.randint(1, 4))
    for sequence in placed:
        assert sequence.new == alone(model, sequence)


def test_logits_have_the_bits_of_a_sequence_alone(model: Model, batch: BatchExecutor) -> None:
    free = list(range(batch.pages))
    placed = [Placed(batch, prompt(n, model), free, 0) for n in (5, 90, 31)]
    decode(batch, placed, 1)
    for row, sequence in enumerate(placed):
        expected = model.logits(sequence.tokens[: sequence.prompt])[-1]
        assert batch.logits(row).tobytes() == expected.tobytes()


def test_a_launch_ends_with_the_first_row_that_ends(model: Model, batch: BatchExecutor) -> None:
    free = list(range(batch.pages))
    placed = [Placed(batch, prompt(n, model), free, 0) for n in (7, 20)]
    decode(batch, placed, NEW, limit=24)  # the longer one has 4 to go
    assert [len(sequence.new) for sequence in placed] == [4, 4]
    stop = alone(model, placed[0])[6]
    placed[0].sampling = Sampling(stop_ids=(stop,))
    decode(batch, placed, NEW, limit=600)
    assert placed[0].tokens[-1] == stop
    assert len(placed[1].new) == len(placed[0].new) <= 7


def test_steps_are_as_many_as_asked_for(model: Model, batch: BatchExecutor) -> None:
    free = list(range(batch.pages))
    placed = [Placed(batch, prompt(n, model), free, 0) for n in (7, 20)]
    decode(batch, placed, 3)
    assert [len(sequence.new) for sequence in placed] == [3, 3]


def test_whoever_takes_the_tokens_can_end_the_launch(model: Model, batch: BatchExecutor) -> None:
    def run() -> Placed:
        free = list(range(batch.pages))
        sequence = Placed(batch, prompt(9, model), free, 0)
        sequence.table += [free.pop(), free.pop()]

        def deliver(new: list[list[int]]) -> bool:
            sequence.tokens += new[0]
            return False

        batch.decode([sequence.row(limit=590)], 500, deliver)
        return sequence

    # On a crowded machine, a launch may be over before anybody has looked at it.
    sequence = next(ended for ended in (run() for _ in range(100)) if len(ended.new) < 500)
    assert sequence.new
    assert sequence.new == alone(model, sequence, len(sequence.new))


def test_a_page_that_is_copied_is_the_same(model: Model, batch: BatchExecutor) -> None:
    """Two sequences with a common beginning: the second goes on from a copy of the first's page."""
    free = list(range(batch.pages))
    first = Placed(batch, prompt(200, model), free, 0)
    decode(batch, [first], 5)
    second = Placed(batch, [1], free, 0)
    batch.copy_page(first.table[0], second.table[0])
    ids = first.tokens[:150] + prompt(20, model)
    second.tokens, second.prompt = list(ids), len(ids)
    batch.prefill(ids[150:-1], 150, second.table)
    decode(batch, [first, second], NEW - 5)
    assert first.new == alone(model, first)
    assert second.new == alone(model, second, NEW - 5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("schedule", ["ops", "fused", "pipelined", "tokens"])
def test_every_rung_and_any_threads(
    model: Model, long_llama: Path, threads: int, schedule: str
) -> None:
    with load(long_llama, threads, schedule, model.activations, kv_cache=model.kv_cache) as other:
        batch = other.batch(3, pages=4)
        free = list(range(batch.pages))
        placed = [Placed(batch, prompt(n, model), free, n) for n in (3, 70, 11)]
        decode(batch, placed, NEW)
        batch.close()
        for sequence in placed:
            assert sequence.new == alone(model, sequence)


def test_a_batch_of_one(model: Model) -> None:
    batch = model.batch(1)
    assert (batch.rows, batch.pages, batch.page) == (1, 3, 256)
    sequence = Placed(batch, prompt(30, model), [1], 0)
    decode(batch, [sequence], NEW)
    assert sequence.new == alone(model, sequence)
    batch.close()


def test_no_rows(model: Model) -> None:
    with pytest.raises(UsageError, match="a batch of 0 is not possible"):
        model.batch(0)


def test_logits_are_numbers(model: Model, batch: BatchExecutor) -> None:
    decode(batch, [Placed(batch, prompt(9, model), list(range(batch.pages)), 0)], 1)
    assert np.isfinite(batch.logits(0)).all()


@pytest.mark.parametrize("schedule", ["ops", "tokens"])
def test_guesses_change_no_token(model: Model, long_llama: Path, schedule: str) -> None:
    """Two that soon repeat themselves, each alone for a while, then both, then alone again."""
    with load(
        long_llama, 2, schedule, model.activations, kv_cache=model.kv_cache, speculate=5
    ) as other:
        batch = other.batch(2, pages=8)
        free = list(range(batch.pages))
        first, second = (Placed(batch, prompt(9 + n, model), free, n) for n in range(2))
        for placed, steps in (([second], 5), ([first, second], 7), ([first], 80), ([second], 9)):
            decode(batch, placed, steps, limit=200)
            if steps == 80:
                assert batch._control["drafted"][0] > 0
                assert batch._control["steps"][0] < steps
        batch.close()
    for sequence in (first, second):
        assert sequence.new == alone(model, sequence, len(sequence.new))


def test_no_guesses_where_each_token_has_a_say(model: Model, long_llama: Path) -> None:
    with load(
        long_llama, 2, activations=model.activations, kv_cache=model.kv_cache, speculate=5
    ) as other:
        batch = other.batch(2, pages=8)
        placed = Placed(batch, [*prompt(6, model)] * 9, list(range(batch.pages)), 0)
        bias = np.zeros(model.config.vocab, np.float32)
        bias[3] = 100
        batch.decode(
            [replace(placed.row(), bias=bias)], 4, lambda new: not placed.tokens.extend(new[0])
        )
        assert placed.new == [3] * 4
        decode(batch, [placed], 1)
        expected = model.logits(placed.tokens[:-1])[-1]
        assert batch.logits(0).tobytes() == expected.tobytes()
        batch.close()


def test_all_programs_are_there_before_the_first_request(
    long_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(long_llama, 1, speculate=3) as other:
        batch = other.batch(2, pages=1)
        batch.compile()
        monkeypatch.setattr(BatchExecutor, "_executable", None)  # nothing more can be made
        batch.prefill([0], 0, [0])
        row = Row([0, 0], 2, 4, [0], Sampling())
        for rows, steps in ((1, 1), (1, 2), (2, 1)):
            batch.decode([row] * rows, steps, lambda new: True)
        batch.close()
