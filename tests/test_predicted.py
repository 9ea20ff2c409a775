"""The cost model held to measurement: what is measured, fitted and predicted. No time is judged."""

import json
from pathlib import Path

import pytest

from hotloop.backends.cpu.team import Team
from hotloop.bench import predicted
from hotloop.bench.predicted import Outcome, Point, errors, hold
from hotloop.cli.main import main
from hotloop.compiler import SCHEDULES
from hotloop.machine import host as machine_host
from hotloop.predict.reference import Boundaries
from hotloop.util.errors import UsageError

TINY = Path(__file__).parent / "data" / "tiny" / "llama"


class Fixed:
    """In place of the reference decoder, which has a test of its own."""

    boundaries = Boundaries(1e-6, 1e-5, 1e-6, 1e-5, 1e-5, 1e-5, 1e-4)

    def __init__(self, team: Team) -> None:
        self.rounds = 0

    def measure(self) -> None:
        self.rounds += 1

    def close(self) -> None:
        assert self.rounds == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "SHORT", 2)
    monkeypatch.setattr(predicted, "LONG", 24)
    monkeypatch.setattr(predicted, "LEAST_TOKENS", 2)
    monkeypatch.setattr(predicted, "MOST_TOKENS", 4)
    monkeypatch.setattr(predicted, "Reference", Fixed)


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


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        Outcome(Point("m", 2, 16), "tokens", 2.0, 2.0),
        Outcome(Point("m", 2, 512), "tokens", 2.0, 2.2),
    ]
    monkeypatch.setattr(predicted, "hold", lambda *arguments: made)
    assert main(["validate", "--measure", "m"]) == 0
    out = capsys.readouterr().out
    assert "+10%" in out
    assert "Median error 5%, largest 10%." in out


def test_errors_are_relative_to_what_was_measured() -> None:
    point = Point("m", 1, 16)
    outcomes = [
        Outcome(point, "fused", 2.0, 3.0),
        Outcome(point, "looped", 2.0, 1.8),
        Outcome(point, "tokens", 2.0, 2.0),
    ]
    assert errors(outcomes) == (pytest.approx(0.1), pytest.approx(0.5))
    assert str(point) == "m, 1 threads, position 16, batch 1"


def test_bad_requests() -> None:
    with pytest.raises(UsageError, match="at least one model"):
        hold([], [1])
    with pytest.raises(UsageError, match="each number of threads once"):
        hold(["x"], [1, 1])
