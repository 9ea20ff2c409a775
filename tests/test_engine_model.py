"""The engine on a real, tiny model: company, cache hits and preemption change no token."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_engine import Client, run

from hotloop import Model, load
from hotloop.runtime.engine import Engine
from hotloop.runtime.logprobs import PromptLogprobs, top_logprobs
from hotloop.runtime.sampling import Sampling

DATA = Path(__file__).parent / "data"
SAMPLINGS = (
    Sampling(),
    Sampling(0.9, 7, top_p=0.9),
    Sampling(1.1, 11, presence_penalty=0.5, frequency_penalty=0.3),
    Sampling(0.7, 13, top_k=20, repeat_penalty=1.2, repeat_last_n=-1),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The tiny llama with room for four pages."""
    folder = tmp_path_factory.mktemp("model") / "llama"
    shutil.copytree(DATA / "tiny" / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    with load(folder, 2) as model:
        yield model


def clients(model: Model, count: int, seed: int) -> list[Client]:
    """Prompts that share beginnings of all lengths, sampled in all ways."""
    draw = random.Random(seed)
    base = [draw.randrange(model.config.vocab) for _ in range(500)]
    out = []
    for at in range(count):
        own = [draw.randrange(model.config.vocab) for _ in range(draw.randint(1, 40))]
        prompt = base[: draw.choice([0, 3, 250, 256, 300, 500])] + own
        out.append(Client(prompt, draw.randint(1, 30), SAMPLINGS[at % len(SAMPLINGS)]))
    return out


def alone(model: Model, asked: list[Client]) -> list[list[int]]:
    """The tokens of each by itself, in an engine that has seen nothing."""
    found = []
    executor = model.batch(1, 4)
    for client in asked:
        engine = Engine(executor, 0)
        engine.start()
        fresh = Client(client.sequence.tokens[: client.sequence.prompt], 0)
        fresh.sequence.limit, fresh.sequence.sampling = (
            client.sequence.limit,
            client.sequence.sampling,
        )
        run(engine, fresh)
        engine.close()
        found.append(fresh.tokens)
    executor.close()
    return found


def test_company_and_cache_hits_change_nothing(model: Model) -> None:
    executor = model.batch(4, 12)
    engine = Engine(executor, 100)
    engine.start()
    for seed in (1, 1):  # the second time, all prompts are cached
        asked = clients(model, 10, seed)
        run(engine, *asked)
        assert [client.tokens for client in asked] == alone(model, asked)
    assert engine.load().cached_tokens > 2000
    assert engine.load().pages_free == 12
    engine.close()
    executor.close()


def test_preemption_changes_nothing(model: Model) -> None:
    """Sequences that grow over the ends of pages, and fewer pages than they need together."""
    draw = random.Random(3)
    asked = [
        Client([draw.randrange(model.config.vocab) for _ in range(250)], 300, SAMPLINGS[at])
        for at in range(4)
    ]
    executor = model.batch(4, 7)
    engine = Engine(executor, 100)
    engine.start()
    run(engine, *asked)
    assert engine.load().preemptions > 0
    assert [client.tokens for client in asked] == alone(model, asked)
    engine.close()
    executor.close()


def test_a_bias_reaches_the_sampler_and_only_its_own_sequence(model: Model) -> None:
    executor = model.batch(2, 4)
    engine = Engine(executor, 10)
    engine.start()
    for _ in range(2):
        biased, plain = (Client([1, 2, 3], 5, Sampling()) for _ in range(2))
        biased.sequence.bias = np.full(model.config.vocab, -np.inf, np.float32)
        biased.sequence.bias[[4, 9]] = 0
        run(engine, biased, plain)
        assert set(biased.tokens) <= {4, 9}
        assert [plain.tokens] == alone(model, [plain])
    engine.close()
    executor.close()


def test_prompts_are_scored_with_the_bits_of_decode_steps(model: Model) -> None:
    """In company, and though the cache holds them."""
    executor = model.batch(4, 8)
    executor.prepare_scoring()
    engine = Engine(executor, 10)
    engine.start()
    draw = random.Random(5)
    prompts = [[draw.randrange(model.config.vocab) for _ in range(n)] for n in (1, 2, 65, 300)]
    for more in (0, 3):
        asked = [Client(list(prompt), more) for prompt in prompts]
        readers = [PromptLogprobs(prompt, 2) for prompt in prompts]
        for client, reader in zip(asked, readers, strict=True):
            client.sequence.reader = reader
        run(engine, *asked)
        for client, reader, prompt in zip(asked, readers, prompts, strict=True):
            assert len(client.tokens) == more
            assert reader.found == [
                top_logprobs(logits, token, 2)
                for logits, token in zip(model.logits(prompt), prompt[1:], strict=False)
            ]
    assert engine.load().pages_free == 8
    engine.close()


def test_logprobs_are_those_of_the_logits(model: Model) -> None:
    executor = model.batch(2, 4)
    engine = Engine(executor, 10)
    engine.start()
    asked = Client([1, 2, 3], 4)
    asked.sequence.logprobs = 3
    run(engine, asked)
    logits = model.logits([1, 2, 3, *asked.tokens[:-1]])[2:].astype(np.float64)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = [logprobs for output in asked.outputs for logprobs in output.logprobs]
    for row, one, token in zip(wanted, found, asked.tokens, strict=True):
        assert one.tokens == tuple(np.argsort(-row, kind="stable")[:3])
        assert one.chosen == pytest.approx(row[token], abs=1e-6)
    engine.close()
    executor.close()
