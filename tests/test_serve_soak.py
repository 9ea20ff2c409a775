"""A short soak: requests of all kinds at once, none of them lost, and nothing left of them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from serving import make_executor, running
from waiting import PATIENCE

from hotloop.runtime.engine import Engine, QueueFullError
from hotloop.runtime.sequence import Sequence
from soak import KINDS, soak


def test_nothing_is_lost_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()  # nothing goes on before: then some are, however fast it is
    executor = make_executor(
        pages=50, page=16, rows=4, pause=0.0005, before=lambda: refused.wait(PATIENCE)
    )
    submit = Engine.submit

    def submit_and_note(engine: Engine, sequences: list[Sequence]) -> None:
        try:
            submit(engine, sequences)
        except QueueFullError:
            refused.set()
            raise

    monkeypatch.setattr(Engine, "submit", submit_and_note)
    with running(executor, queue=10, context=700) as server:
        report = asyncio.run(soak(server.url, requests=400, clients=16, seed=5))
    assert not report.lost
    assert sum(report.outcomes.values()) == 400
    assert {outcome.split(":")[0] for outcome in report.outcomes} == set(KINDS)
    assert report.outcomes["drop: dropped"] > 0
    assert any("told to wait" in outcome for outcome in report.outcomes)
    assert report.load["pages_free"] == report.load["pages"] == 50
