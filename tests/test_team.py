"""The team: launches, hangs, more threads than cores, endings."""

import threading

import numpy as np
import pytest

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.codegen import LAUNCH
from hotloop.backends.cpu.sync import define_sync, word
from hotloop.backends.cpu.team import Team
from hotloop.lang import Module, call, constant, fetch_add, function, i64, ret
from hotloop.lang.target import host
from hotloop.util.errors import HangError, UsageError


def counting(module: Module) -> None:
    """Each thread adds one to the counter at args, waits for all, then for one more addition."""
    sync = define_sync(module)
    with function(module, "launch", LAUNCH, i64, exported=True) as (_, team, tid, args):
        zero = constant(0, i64)
        fetch_add(word(args, 0), 1)
        ret(call(sync.barrier, [team, tid, constant(1, i64), zero]))


def hanging(module: Module) -> None:
    """Waits for a counter that nobody moves."""
    sync = define_sync(module)
    with function(module, "launch", LAUNCH, i64, exported=True) as (_, team, tid, args):
        stage, epoch = constant(2, i64), constant(7, i64)
        ret(call(sync.wait, [word(args, 0), constant(3, i64), team, tid, stage, epoch]))


class Probe:
    """A launch that `define` traces, and the counter it is given."""

    def __init__(self, define) -> None:  # type: ignore[no-untyped-def]
        module = Module(define.__name__, host())
        define(module)
        self.code = jit.load(module, ("launch",))
        self.counter = np.zeros(1, np.int64)
        entry = [self.code.address("launch"), self.counter.ctypes.data]
        self.launches = np.array([entry], np.uint64)
        self.context = np.zeros(shared.CONTEXT_WORDS, np.int64)

    def run(self, team: Team, stages: tuple[str, ...] = ("@k %s0", "@k %s1")) -> None:
        team.run(self.context.ctypes.data, self.launches, stages)


@pytest.mark.parametrize("wake", ["parked", "spinning"])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_thread_enters_every_launch(threads: int, wake: str) -> None:
    team, probe = Team(threads, wake), Probe(counting)
    for _ in range(50):
        probe.run(team)
    team.close()
    assert probe.counter[0] == 50 * threads


def test_the_wake_policy_changes_between_launches() -> None:
    team, probe = Team(2), Probe(counting)
    for wake in ("spinning", "parked", "spinning", "parked"):
        team.set_wake(wake)
        probe.run(team)
    team.close()
    assert probe.counter[0] == 8


def test_a_hang_becomes_an_error_that_shows_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_WATCHDOG", "0.2")
    team, probe = Team(3), Probe(hanging)
    with pytest.raises(HangError) as caught:
        probe.run(team)
    lines = str(caught.value).splitlines()
    assert lines[0] == "a launch made no progress for 0.2 s and was stopped; its threads:"
    assert lines[1] == "  thread 0 waits in @k %s1, iteration 7: counter 0 of 3"
    assert len(lines) == 4
    with pytest.raises(HangError, match="an earlier launch hung"):
        Probe(counting).run(team)
    team.close()


def test_a_closed_team_refuses() -> None:
    team, probe = Team(2), Probe(counting)
    team.close()
    team.close()
    with pytest.raises(UsageError, match="closed"):
        probe.run(team)


def team_and_its_threads(threads: int) -> tuple[Team, set[threading.Thread]]:
    """Others' threads may end at any time: of what another test has left behind."""
    before = set(threading.enumerate())
    return Team(threads), set(threading.enumerate()) - before


def test_closing_ends_the_threads() -> None:
    team, threads = team_and_its_threads(4)
    assert len(threads) == 3
    team.close()
    assert not threads & set(threading.enumerate())


def test_a_team_that_is_dropped_ends() -> None:
    team, threads = team_and_its_threads(4)
    assert len(threads) == 3
    del team
    assert not threads & set(threading.enumerate())


def test_no_threads_is_no_team() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Team(0)


def test_launches_wait_their_turn() -> None:
    """Two Python threads that launch at once do not meet inside."""
    team, probe = Team(2), Probe(counting)

    def many() -> None:
        for _ in range(100):
            probe.run(team)

    callers = [threading.Thread(target=many) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    team.close()
    assert probe.counter[0] == 400
