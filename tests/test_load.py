"""The load generator, on our own server with its fake model, and on servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from serving import make_executor, running
from waiting import PATIENCE

from hotloop.bench.load import Answer, LoadError, Plan, Result, load
from hotloop.bench.load_table import histogram, render
from hotloop.cli.main import main
from hotloop.serve.app import Access


def test_everybody_is_asked_and_counted() -> None:
    with running(make_executor(pause=0.05)) as server:
        calls: list[None] = []
        plan = Plan(clients=3, requests=7, prompt=10, shared=6, max_tokens=5)
        result = asyncio.run(load(server.url, plan, progress=lambda: calls.append(None)))
    assert not result.errors
    assert len(calls) == len(result.good) == 7
    assert sum(answer.tokens for answer in result.answers) == 35
    assert all(answer.cached_tokens > 0 for answer in result.answers[3:])
    values = result.to_json()
    assert values["tokens_per_second"] == pytest.approx(35 / values["seconds"])
    assert 0 < values["between"]["p50"] <= values["between"]["p99"]
    assert len(result.times("between")) <= 28
    json.dumps(values)


def test_prompts_are_the_same_for_everybody() -> None:
    prompts = Plan(requests=3, prompt=20, shared=5).prompts()
    assert prompts == Plan(requests=3, prompt=20, shared=5).prompts()
    assert len({prompt.split()[0] for prompt in prompts}) == 1
    assert len(set(prompts)) == 3
    assert all(len(prompt.split()) == 20 for prompt in prompts)


def test_refusals_are_part_of_the_result() -> None:
    refused = threading.Event()  # nobody can have been answered before
    executor = make_executor(rows=1, before=lambda: refused.wait(PATIENCE))
    with running(executor, queue=0) as server:
        plan = Plan(clients=4, requests=4, prompt=5, max_tokens=5)
        result = asyncio.run(load(server.url, plan, progress=refused.set))
    assert 0 < len(result.good) < 4
    assert all(error.startswith("429: ") and "try again" in error for error in result.errors)
    assert "failed; the first said: 429" in str(render(result)[0])


def test_no_server_and_no_key() -> None:
    with pytest.raises(LoadError, match="has no /v1/models"):
        asyncio.run(load("http://127.0.0.1:9", Plan()))
    with running(access=Access(keys=("right",))) as server:
        with pytest.raises(LoadError, match="401"):
            asyncio.run(load(server.url, Plan()))
        assert asyncio.run(load(server.url, Plan(requests=1, prompt=5), key="right")).good


def test_histograms() -> None:
    assert histogram([5.0]).count("█") == 40
    lines = histogram([1.0] * 100 + [100.0]).splitlines()
    assert len(lines) == 16
    assert lines[0].endswith(" 100")
    assert lines[-1].endswith(" 1")
    assert "▏" in lines[-1]
    assert "▏" not in lines[1]
    assert len(histogram([1.0] * 5 + [3.0] * 4).splitlines()) == 2  # a few values, few bins
    assert histogram([0.0, 0.0])
    assert Result("m", Plan(), 1.0, [Answer(error="x")]).percentiles("first") == {}


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as server:
        options = ["--clients", "2", "--requests", "3", "--prompt", "5", "-n", "4"]
        assert main(["load", server.url, *options]) == 0
        out = capsys.readouterr().out
        assert "3 answers to 2 clients" in out
        assert "between tokens" in out
        alone = ["--clients", "1", "--requests", "1", "--prompt", "5"]
        assert main(["load", server.url + "/v1/", *alone]) == 0
        assert "1 answer to 1 client in" in capsys.readouterr().out
        assert main(["load", server.url, *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tokens"] == 12
        assert main(["load", server.url, *options, "--model", "other"]) != 0
        assert "told 404: there is no model 'other'" in capsys.readouterr().err
    assert main(["load", "localhost"]) == 2
    assert "is no URL" in capsys.readouterr().err
