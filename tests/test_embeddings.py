"""Embeddings: transformers' numbers, and the same bits alone, in company and after preemption."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import requests
from fake_executor import WIDTH, FakeExecutor, hidden_state
from serving import BOS, VOCAB, Running, make_executor, running
from test_engine import Client, run
from waiting import PATIENCE, wait_until

from hotloop import Model, load
from hotloop.runtime.engine import Engine
from hotloop.runtime.pooling import Pooled, Pooling
from hotloop.runtime.sampling import Sampling
from hotloop.runtime.sequence import Finish, Sequence

DATA = Path(__file__).parent / "data"
REFERENCES = json.loads((DATA / "embeddings.json").read_text())


class Embedded(Client):
    """A sequence that generates nothing and is pooled."""

    def __init__(self, prompt: list[int], pooling: Pooling = "mean") -> None:
        super().__init__(prompt, 0)
        self.pooled = Pooled(pooling)
        self.sequence = Sequence(prompt, len(prompt), Sampling(), self._take, reader=self.pooled)


def pool(values: list[np.ndarray], pooling: str) -> np.ndarray:
    wide = np.array(values, np.float64)
    vector = wide.mean(0) if pooling == "mean" else wide[-1]
    return vector / np.linalg.norm(vector)


# on a real, tiny model


@pytest.mark.parametrize("name", REFERENCES)
def test_vectors_are_those_of_transformers(name: str) -> None:
    with load(DATA / "tiny" / name, 2, activations="f32") as model:
        engine = Engine(model.batch(3, 3), 10)
        engine.start()
        for pooling in ("mean", "last"):
            cases = REFERENCES[name]
            asked = [Embedded(case["input_ids"], pooling) for case in cases]
            run(engine, *asked)
            for client, case in zip(asked, cases, strict=True):
                np.testing.assert_allclose(client.pooled.vector, case[pooling], atol=2e-5)
        assert engine.load().pages_free == 3
        engine.close()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load(DATA / "tiny" / "llama", 2) as model:
        yield model


def test_company_and_the_cache_change_no_bit(model: Model) -> None:
    draw = random.Random(3)
    base = [draw.randrange(model.config.vocab) for _ in range(130)]
    texts = [[*base[: draw.randint(1, 130)], draw.randrange(50)] for _ in range(12)]
    alone = []
    for text in texts:
        engine = Engine(model.batch(1, 1), 0)
        engine.start()
        client = Embedded(text)
        run(engine, client)
        alone.append(client.pooled.vector)
        engine.close()
    engine = Engine(model.batch(4, 4), 20)
    engine.start()
    chats = [Client(list(base[:9]), 60) for _ in range(2)]
    asked = [Embedded(text) for text in texts]
    run(engine, *chats, *asked)
    for client, wanted in zip(asked, alone, strict=True):
        assert client.finish is Finish.LENGTH
        assert client.sequence.cached == 0
        np.testing.assert_array_equal(client.pooled.vector, wanted)
    assert chats[0].tokens == chats[1].tokens
    assert len(chats[0].tokens) == 60
    engine.close()


# on the fake model


def test_one_that_is_put_back_hears_everything_once() -> None:
    """Streams that need pages put the reading of a long text back, again and again."""
    executor = FakeExecutor(pages=9, page=4, rows=4, block=3)
    engine = Engine(executor, 20)
    chats = [Client([at, 1, 2], 20) for at in range(3)]
    text = Embedded(list(range(17)))
    engine.submit([client.sequence for client in (*chats, text)])
    engine.start()
    for client in (*chats, text):
        client.wait()
    assert engine.load().preemptions > 0
    wanted = pool([hidden_state(list(range(at + 1))) for at in range(17)], "mean")
    np.testing.assert_allclose(text.pooled.vector, wanted, rtol=1e-6)
    assert engine.load().pages_free == 9
    engine.close()


def test_nothing_and_zeros_have_no_length() -> None:
    vector = Pooled("mean")
    assert vector.vector.shape == (0,)
    vector.read(np.zeros((2, 3), np.float32))
    assert vector.vector.tolist() == [0, 0, 0]


# over HTTP


def wanted(text: bytes) -> np.ndarray:
    return hidden_state([BOS, *text])  # of the last token, with length 1


def test_texts_and_tokens(client: openai.OpenAI) -> None:
    """The client asks for base64 by itself."""
    texts = [b"abc", b"a", b"the quick brown fox" * 3]
    for given in ([text.decode() for text in texts], [[BOS, *text] for text in texts]):
        made = client.embeddings.create(model="tiny", input=given)
        assert [one.index for one in made.data] == [0, 1, 2]
        for one, text in zip(made.data, texts, strict=True):
            np.testing.assert_allclose(one.embedding, wanted(text), rtol=1e-6)
        read = sum(len(text) + 1 for text in texts)
        assert (made.usage.prompt_tokens, made.usage.total_tokens) == (read, read)
    one = client.embeddings.create(model="tiny", input=[BOS, *b"abc"], encoding_format="float")
    np.testing.assert_allclose(one.data[0].embedding, wanted(b"abc"), rtol=1e-6)
    assert client.embeddings.create(model="tiny", input="abc", dimensions=WIDTH).data


def test_base64_is_little_endian_float32(server: Running) -> None:
    body = {"input": "abc", "encoding_format": "base64"}
    made = requests.post(server.url + "/v1/embeddings", json=body, timeout=PATIENCE).json()
    numbers = np.frombuffer(base64.b64decode(made["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(numbers, wanted(b"abc"), rtol=1e-6)


def test_more_texts_than_the_queue_holds() -> None:
    with (
        running(queue=0) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        made = client.embeddings.create(model="tiny", input=[f"text {at}" for at in range(50)])
        assert len(made.data) == 50
        np.testing.assert_allclose(made.data[49].embedding, wanted(b"text 49"), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, None),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["x", "a" * 600]}, "input"),
        ({"input": [VOCAB]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": {}}, "input"),
        ({"dimensions": 3}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"model": "another"}, "model"),
    ],
)
def test_what_is_wrong_is_named(
    server: Running, change: dict[str, object], param: str | None
) -> None:
    body = {"model": "tiny", "input": "x"} | change
    response = requests.post(server.url + "/v1/embeddings", json=body, timeout=PATIENCE)
    if param is None:  # BOS alone is a text
        assert response.ok
    else:
        assert response.status_code in (400, 404)
        assert response.json()["error"]["param"] == param


def test_a_client_that_goes_away_frees_all() -> None:
    executor = make_executor(pause=0.05)
    with running(executor) as server:
        body = {"input": ["a" * 400] * 500}
        with pytest.raises(requests.ReadTimeout):  # of what takes five minutes
            requests.post(server.url + "/v1/embeddings", json=body, timeout=(PATIENCE, 1))
        wait_until(server.is_at_rest)
        assert sum("prefill" in call for call in executor.calls) < 500 * 13
