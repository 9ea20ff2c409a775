"""A short soak: requests of all kinds at once, none of them lost, and nothing left of them."""

from __future__ import annotations

import asyncio

from serving import make_executor, running

from soak import KINDS, soak


def test_nothing_is_lost_and_nothing_is_left() -> None:
    executor = make_executor(pages=50, page=16, rows=4, pause=0.0005)
    with running(executor, queue=10, context=700) as server:
        report = asyncio.run(soak(server.url, requests=400, clients=16, seed=5))
    assert not report.lost
    assert sum(report.outcomes.values()) == 400
    assert {outcome.split(":")[0] for outcome in report.outcomes} == set(KINDS)
    assert report.outcomes["drop: dropped"] > 0
    assert any("told to wait" in outcome for outcome in report.outcomes)
    assert report.load["pages_free"] == report.load["pages"] == 50
