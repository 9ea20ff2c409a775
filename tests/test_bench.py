"""bench: what is measured, how it is counted, and the form of the results. No timing is judged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop import Model, load
from hotloop.bench import first_token, ladder
from hotloop.bench.fingerprint import fingerprint
from hotloop.bench.prompts import sample_ids
from hotloop.bench.result import BenchResult, FirstToken, RungResult, Samples
from hotloop.bench.table import render
from hotloop.compiler import SCHEDULES
from hotloop.util.errors import HotloopError, UsageError

TINY = Path(__file__).parent / "data" / "tiny" / "llama"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load(TINY, threads=2, context=64) as made:
        yield made


@pytest.fixture(scope="module")
def result(model: Model) -> Iterator[BenchResult]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "DRAM_BYTES", 1 << 20)
        yield ladder.bench(model, rounds=1, tokens=4)


@pytest.fixture(scope="module")
def values(result: BenchResult) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(result.to_json()))
    return made


def test_the_keys_are_those_promised(values: dict[str, Any]) -> None:
    promised = {
        "read_gbps", "bytes_per_token", "rungs", "rungs_spinning", "prompt_tok_s",
        "first_token_s", "machine", "model", "threads",
    }  # fmt: skip
    assert promised <= values.keys()
    assert tuple(values["rungs"]) == SCHEDULES
    assert tuple(values["rungs_spinning"]) == SCHEDULES[:-1]
    for rung in (*values["rungs"].values(), *values["rungs_spinning"].values()):
        assert {"tok_s", "ms", "gbps", "share", "launches", "syncs"} <= rung.keys()
    for first in (values["first_token_s"], values["first_token_cached_s"]):
        assert {"load", "pack", "compile", "total"} <= first.keys()


def test_numbers_agree_with_each_other(values: dict[str, Any]) -> None:
    for rung in values["rungs"].values():
        assert rung["tok_s"] == pytest.approx(1e3 / rung["ms"])
        assert rung["gbps"] == pytest.approx(values["bytes_per_token"] * rung["tok_s"] / 1e9)
        assert rung["share"] == pytest.approx(rung["gbps"] / values["read_gbps"])
        low, high = rung["ms_range"]
        assert low <= rung["ms"] <= high
    assert values["rungs"]["ops"]["launches"] == 60
    assert values["rungs"]["looped"]["launches"] == 1
    assert values["rungs"]["tokens"]["launches"] == 1 / 4


def test_the_parts_of_the_first_token_add_up(result: BenchResult) -> None:
    for first in (result.first_token, result.first_token_cached):
        parts = (first.start, first.load, first.pack, first.compile, first.prompt)
        assert all(part >= 0 for part in parts)
        assert sum(parts) <= first.total * 1.5  # medians of parts, part by part


def test_the_team_is_parked_afterwards(model: Model, result: BenchResult) -> None:
    assert result.spinning
    assert model.wake == "parked"


def test_the_table_fits_in_100_columns(result: BenchResult) -> None:
    from rich.console import Console

    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        for part in render(result):
            console.print(part)
    text = capture.get()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "…" not in text
    for expected in (*SCHEDULES, "parked", "spinning", "plain read", "cold", "code cached"):
        assert expected in text


def test_some_rungs_only(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FirstToken(0, 0, 0, 0, 0, 0)
    monkeypatch.setattr(first_token, "measure", lambda *args: [fake, fake])
    monkeypatch.setattr(ladder, "DRAM_BYTES", 1 << 20)
    seen: list[tuple[int, int | None, str]] = []
    made = ladder.bench(model, ["tokens"], 1, 2, lambda *step: seen.append(step))
    assert tuple(made.rungs) == ("tokens",)
    assert made.spinning == {}
    assert [done for done, total, what in seen if what == "measure"] == list(range(8))


def test_a_context_too_short_is_refused(model: Model) -> None:
    with pytest.raises(UsageError, match="need a context of 116, and this one holds 64"):
        ladder.bench(model, tokens=100)


def test_a_round_starts_where_the_last_did_not() -> None:
    order: list[str] = []
    work = {(name, ""): lambda name=name: float(order.append(name) or len(order)) for name in "abc"}
    samples = ladder._rounds(work, 2, lambda done, total, what: None)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert samples["a", ""].values == (6.0, 8.0)


def test_samples() -> None:
    samples = Samples((3.0, 1.0, 10.0))
    assert (samples.median, samples.low, samples.high) == (3.0, 1.0, 10.0)


def test_a_rungs_rates() -> None:
    rung = RungResult(Samples((2.0,)), launches=1, syncs=3, bytes_per_token=50_000_000)
    assert rung.tok_s == 500
    assert rung.gbps == pytest.approx(25.0)


def test_prompts_are_the_same_every_time_and_in_the_vocabulary() -> None:
    ids = sample_ids(100, 50)
    assert ids == sample_ids(100, 50)
    assert all(0 <= token < 100 for token in ids)
    assert len(set(ids)) > 10


def test_the_fingerprint_names_machine_and_versions() -> None:
    from hotloop import __version__

    made = fingerprint()
    assert made.hotloop == __version__
    assert made.cpu
    assert 1 <= made.threads_available <= made.cores
    assert made.date.endswith("+00:00")


def test_a_process_that_fails_is_one_sentence() -> None:
    with pytest.raises(HotloopError, match=r"no first token: .*does not exist"):
        first_token.measure(TINY / "nothing.gguf", 1, "q8", "f16", None, 1)
