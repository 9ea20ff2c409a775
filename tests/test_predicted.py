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
def test_every_rung_of_every_point_is_measured_and_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_host, "available_threads", lambda: 1)
    assert main(["validate", "--measure", str(TINY), "--rounds", "1", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["largest_error"] >= values["median_error"] >= 0
    outcomes = values["outcomes"]
    places = [(o["point"]["position"], o["point"]["batch"], o["rung"]) for o in outcomes]
    assert places == [
        (position, batch, rung)
        for position, batch in ((2, 1), (24, 1), (2, predicted.BATCH))
        for rung in SCHEDULES
    ]
    assert all(o["measured"] > 0 and o["predicted"] > 0 for o in outcomes)
    assert [o["fitted"] for o in outcomes] == [place[:2] == (2, 1) for place in places]


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        Outcome(Point("m", 2, 16), "tokens", 2.0, 2.0, True),
        Outcome(Point("m", 2, 512), "tokens", 2.0, 2.2, False),
    ]
    monkeypatch.setattr(predicted, "hold", lambda *arguments: made)
    assert main(["validate", "--measure", "m"]) == 0
    out = capsys.readouterr().out
    assert "+10%" in out
    assert "Held out: median error 10%, largest 10%." in out


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
