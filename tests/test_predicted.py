"""The cost model held to measurement: what is measured, fitted and predicted. No time is judged."""

import json
from pathlib import Path

import pytest

from hotloop.bench import predicted
from hotloop.bench.predicted import Outcome, Point, errors, hold
from hotloop.cli.main import main
from hotloop.compiler import SCHEDULES
from hotloop.machine import host as machine_host
from hotloop.util.errors import UsageError

TINY = Path(__file__).parent / "data" / "tiny" / "llama"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "SHORT", 2)
    monkeypatch.setattr(predicted, "LONG", 24)
    monkeypatch.setattr(predicted, "LEAST_TOKENS", 2)
    monkeypatch.setattr(predicted, "MOST_TOKENS", 4)


@pytest.mark.usefixtures("quick")
def test_every_rung_of_every_point_is_measured_and_predicted() -> None:
    outcomes = hold([str(TINY)], [1, 2], rounds=2)
    points = [(o.point.threads, o.point.position, o.point.batch, o.rung) for o in outcomes]
    assert points == [
        (threads, position, batch, rung)
        for threads in (1, 2)
        for position, batch in ((2, 1), (24, 1), (2, predicted.BATCH))
        for rung in SCHEDULES
    ]
    assert all(outcome.measured > 0 and outcome.predicted > 0 for outcome in outcomes)
    fitted = [o.point.position == 2 and o.point.batch == 1 for o in outcomes]
    assert [o.fitted for o in outcomes] == fitted


@pytest.mark.usefixtures("quick")
def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_host, "available_threads", lambda: 1)
    assert main(["validate", "--measure", str(TINY), "--rounds", "1", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert {"median_error", "largest_error", "outcomes"} <= set(values)
    assert main(["validate", "--measure", str(TINY), "--rounds", "1"]) == 0
    assert "Held out: median error" in capsys.readouterr().out


def test_errors_are_those_of_what_was_predicted() -> None:
    point = Point("m", 1, 16)
    outcomes = [
        Outcome(point, "ops", 1.0, 9.0, True),
        Outcome(point, "fused", 2.0, 3.0, False),
        Outcome(point, "looped", 2.0, 1.8, False),
        Outcome(point, "tokens", 2.0, 2.0, False),
    ]
    assert errors(outcomes) == (pytest.approx(0.1), pytest.approx(0.5))
    assert errors(outcomes[:1]) == (0.0, 0.0)
    assert str(point) == "m, 1 threads, position 16, batch 1"


def test_bad_requests() -> None:
    with pytest.raises(UsageError, match="at least one model"):
        hold([], [1])
    with pytest.raises(UsageError, match="each number of threads once"):
        hold(["x"], [1, 1])
