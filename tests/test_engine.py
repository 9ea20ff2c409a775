"""The engine on a fake executor: many threads ask, one works, and everybody gets an answer."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from fake_executor import FakeExecutor, continuation
from numpy.typing import NDArray
from waiting import PATIENCE, wait_until

from hotloop.runtime.engine import ClosedError, Engine, QueueFullError
from hotloop.runtime.logprobs import top_logprobs
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.sequence import ConstraintError, Finish, Output, Sequence
from hotloop.util.errors import ContextError, UsageError

VOCAB = 97
LONG = 100_000


class Client:
    """A sequence and what its sink has been told."""

    def __init__(self, prompt: list[int], more: int = 5, sampling: Sampling | None = None) -> None:
        self.outputs: list[Output] = []
        self.ended = threading.Event()
        limit = len(prompt) + more
        self.sequence = Sequence(prompt, limit, sampling or Sampling(), self._take)

    def _take(self, output: Output) -> None:
        assert not self.ended.is_set()
        self.outputs.append(output)
        if output.finish is not None:
            self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]

    @property
    def finish(self) -> Finish | None:
        return self.outputs[-1].finish

    def wait(self) -> Client:
        assert self.ended.wait(PATIENCE)
        return self


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor(vocab=VOCAB)


@pytest.fixture
def engine(executor: FakeExecutor) -> Iterator[Engine]:
    engine = Engine(executor, queue=100)
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def slow() -> Iterator[Engine]:
    """One that takes some minutes for `LONG` tokens: only who cancels sees their end."""
    engine = Engine(FakeExecutor(LONG, vocab=VOCAB, pause=0.002), queue=100)
    engine.start()
    yield engine
    engine.close()


def run(engine: Engine, *clients: Client) -> None:
    engine.submit([client.sequence for client in clients])
    for client in clients:
        client.wait()


def test_everybody_gets_what_they_would_get_alone(engine: Engine) -> None:
    draw = random.Random(1)
    clients = [
        Client([draw.randrange(3) for _ in range(draw.randint(1, 20))], draw.randint(1, 20))
        for _ in range(40)
    ]
    run(engine, *clients)
    for client in clients:
        prompt = client.sequence.tokens[: client.sequence.prompt]
        more = client.sequence.limit - client.sequence.prompt
        assert client.tokens == continuation(prompt, more, VOCAB)
        assert client.finish is Finish.LENGTH
    load = engine.load()
    assert (load.running, load.waiting, load.pages_free) == (0, 0, load.pages)
    assert load.output_tokens == sum(len(client.tokens) for client in clients)
    assert load.cached_tokens > 0


def test_a_stop_token_ends_it_and_is_the_last(engine: Engine) -> None:
    stop = continuation([1, 2, 3], 5, VOCAB)[2]
    client = Client([1, 2, 3], sampling=Sampling(stop_ids=(stop,)))
    run(engine, client)
    assert client.tokens == continuation([1, 2, 3], 5, VOCAB, (stop,))
    assert client.finish is Finish.STOP


def test_cancelling_ends_at_the_next_token_and_frees_all(slow: Engine) -> None:
    clients = [Client([at, 2, 3], more=LONG) for at in range(3)]
    waiting = Client([9, 9], more=LONG)
    slow.submit([client.sequence for client in (*clients, waiting)])
    wait_until(lambda: all(client.tokens for client in clients))
    slow.cancel([client.sequence for client in (*clients, waiting)])
    for client in (*clients, waiting):
        assert client.wait().finish is Finish.CANCELLED
        assert len(client.tokens) < LONG
    assert slow.load().pages_free == slow.load().pages
    slow.cancel([clients[0].sequence])  # once more is nothing
    run(slow, Client([1]))


def test_requests_join_a_launch_that_runs(slow: Engine) -> None:
    first = Client([1], more=LONG)
    slow.submit([first.sequence])
    wait_until(lambda: first.tokens)
    second = Client([2], more=2)
    run(slow, second)
    assert not first.ended.is_set()
    assert second.tokens == continuation([2], 2, VOCAB)


def test_what_never_fits_and_what_is_too_much_is_refused(executor: FakeExecutor) -> None:
    engine = Engine(executor, queue=2)  # not started: all wait
    with pytest.raises(ContextError, match="66 tokens do not fit in the KV cache, which holds 64"):
        engine.submit([Client([1] * 61).sequence])
    with pytest.raises(UsageError, match="6 sequences in one request; this server takes 5 in all"):
        engine.submit([Client([1]).sequence for _ in range(6)])
    engine.submit([Client([1]).sequence for _ in range(4)])
    with pytest.raises(QueueFullError, match="1 requests are waiting and 2 may"):
        engine.submit([Client([1]).sequence, Client([1]).sequence])
    engine.submit([Client([1]).sequence])
    engine.close()
    with pytest.raises(ClosedError, match="shutting down"):
        engine.submit([Client([1]).sequence])


def test_closing_waits_for_what_ends_in_time(engine: Engine) -> None:
    clients = [Client([at], more=20) for at in range(5)]
    engine.submit([client.sequence for client in clients])
    engine.close(grace=PATIENCE)
    assert [client.finish for client in clients] == [Finish.LENGTH] * 5


def test_closing_cancels_what_does_not(slow: Engine) -> None:
    clients = [Client([at], more=LONG) for at in range(5)]
    slow.submit([client.sequence for client in clients])
    slow.close(grace=0.1)
    assert [client.finish for client in clients] == [Finish.CANCELLED] * 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_executor_fails_everybody_is_told() -> None:
    class Broken(FakeExecutor):
        def decode(self, *_: object) -> None:
            raise RuntimeError("a fire in the machine room")

    engine = Engine(Broken(), queue=10)
    clients = [Client([1, at]) for at in range(5)]
    engine.submit([client.sequence for client in clients])
    engine.start()
    for client in clients:
        assert client.wait().finish is Finish.ERROR
        assert client.outputs[-1].error == "the engine has failed: a fire in the machine room"
    with pytest.raises(ClosedError, match="a fire"):
        engine.submit([Client([1]).sequence])
    engine.close()


FAILS, FAILS_LATER = -1, -2


class Only:
    """A grammar: these tokens in this order, then the end."""

    def __init__(self, tokens: list[int]) -> None:
        self.left = tokens

    def allowed(self) -> NDArray[np.bool_]:
        if self.left[0] == FAILS:
            raise ConstraintError("the grammar is too complex.")
        allowed = np.zeros(VOCAB, bool)
        allowed[self.left[0]] = True
        return allowed

    def accept(self, token: int) -> None:
        assert token == self.left.pop(0)
        if self.left[0] == FAILS_LATER:
            raise ConstraintError("the grammar has got too complex.")


def test_grammars_decide(engine: Engine) -> None:
    clients = [Client([1, 2], 4), Client([1, 2], 4), Client([1, 2], 4), Client([3], 4)]
    clients[0].sequence.constraint = Only([9, 8, 7, 6])
    clients[1].sequence.constraint = Only([9, FAILS])
    clients[2].sequence.constraint = Only([9, FAILS_LATER])
    run(engine, *clients)
    assert clients[0].tokens == [9, 8, 7, 6]
    assert clients[1].tokens == clients[2].tokens == [9]
    assert clients[1].outputs[-1].error == "the grammar is too complex."
    assert clients[2].outputs[-1].error == "the grammar has got too complex."
    assert clients[3].tokens == continuation([3], 4, VOCAB)
    assert engine.load().pages_free == engine.load().pages
    assert not engine.failure


def test_logprobs_are_of_the_model(engine: Engine) -> None:
    client = Client([1, 2], 3)
    client.sequence.logprobs = 2
    client.sequence.bias = np.full(VOCAB, -np.inf, np.float32)
    client.sequence.bias[50] = 0
    run(engine, client)
    assert client.tokens == [50, 50, 50]
    found = [logprobs for output in client.outputs for logprobs in output.logprobs]
    likely = continuation([1, 2], 1, VOCAB)[0]
    assert found[0].tokens == (likely, 0 if likely else 1)
    assert found[0].chosen == found[0].logprobs[1]


def test_top_logprobs() -> None:
    logits = np.array([1, 3, 3, -np.inf, 2], np.float32)
    found = top_logprobs(logits, 4, 3)
    assert found.tokens == (1, 2, 4)
    assert found.chosen == found.logprobs[2]
    total = np.exp(top_logprobs(logits, 0, 5).logprobs).sum()
    assert total == pytest.approx(1)
    assert top_logprobs(logits, 3, 0).chosen == -np.inf
    assert top_logprobs(logits, 3, 0).tokens == ()


@pytest.mark.parametrize(("vocab", "spread"), [(1, 1), (7, 0), (50_000, 0.01), (50_000, 30)])
def test_logprobs_are_those_of_float64(vocab: int, spread: float) -> None:
    logits = np.random.default_rng(vocab).normal(100, spread, vocab).astype(np.float32)
    exact = logits - np.logaddexp.reduce(logits.astype(np.float64))
    found = top_logprobs(logits, 0, 20)
    assert found.tokens == tuple(np.argsort(-logits, kind="stable")[:20])
    assert found.logprobs == pytest.approx(exact[list(found.tokens)], abs=1e-6)
    assert found.chosen == pytest.approx(exact[0], abs=1e-6)
