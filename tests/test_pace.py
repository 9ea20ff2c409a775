"""When to look at a launch: not before a step may have ended, and then often."""

import time

import pytest

from hotloop.runtime.pace import DUE_SECONDS, FIRST_SECONDS, LONGEST_SECONDS, SURE, Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_nobody_looks_before_a_step_may_have_ended(clock: Clock) -> None:
    pace = Pace()
    assert pace.nap() == FIRST_SECONDS
    clock.now += 0.02
    pace.step(2)  # two steps of 10 ms
    assert pace.nap() == pytest.approx(SURE * 0.01)
    clock.now += 0.009
    assert pace.nap() == DUE_SECONDS
    clock.now += 0.001
    pace.step(1)
    assert pace.nap() == pytest.approx(SURE * 0.01)


def test_a_slow_step_changes_nothing_and_a_fast_one_does(clock: Clock) -> None:
    pace = Pace()
    for seconds, usual in ((0.01, 0.01), (0.5, 0.01), (0.004, 0.004)):
        clock.now += seconds
        pace.step(1)
        assert pace.nap() == pytest.approx(SURE * usual)


def test_no_sleep_is_long(clock: Clock) -> None:
    pace = Pace()
    clock.now += 9.0
    pace.step(1)
    assert pace.nap() == LONGEST_SECONDS
