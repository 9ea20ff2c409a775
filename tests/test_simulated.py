"""Pictures of simulated runs: what was busy when, and how much memory sent."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.backends.dataflow.simulate import Span, Timeline
from hotloop.cli.main import main
from hotloop.report.simulated import RESOURCES, Share, bandwidth, merged, shares, timeline_trace


def timeline(*spans: Span) -> Timeline:
    return Timeline(1.0, 1, 0.0, spans, ())


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 3), st.floats(1, 1e6)), max_size=20),
    st.integers(1, 50),
)
def test_no_byte_is_lost_or_counted_twice(
    transfers: list[tuple[float, float, float]], bins: int
) -> None:
    spans = [Span("memory", "x", start, start + length, n) for start, length, n in transfers]
    rates, width = bandwidth(timeline(*spans), bins)
    assert sum(rates) * width == pytest.approx(sum(n for _, _, n in transfers))


def test_other_resources_send_nothing() -> None:
    rates, _ = bandwidth(timeline(Span("units", "x", 0, 1, 5.0)))
    assert not rates.any()
    assert not bandwidth(timeline())[0].any()


def test_neighbours_are_one_slice() -> None:
    spans = [
        Span("memory", "a", 0, 1, 10),
        Span("units", "a", 0.5, 2),
        Span("memory", "a", 1, 2, 10),
        Span("memory", "b", 2, 3, 10),
        Span("memory", "b", 4, 5, 10),
    ]
    found = sorted(merged(spans), key=lambda span: (span.resource, span.start))
    assert found == [
        Span("memory", "a", 0, 2, 20),
        Span("memory", "b", 2, 3, 10),
        Span("memory", "b", 4, 5, 10),
        Span("units", "a", 0.5, 2),
    ]


def test_an_instant_counts_for_memory_first() -> None:
    spans = [
        Span("controller", "start @a", 0, 2),
        Span("memory", "@a x", 1, 3, 20),
        Span("units", "@a x", 2, 5),
        Span("link", "@a x", 4, 4.5, 7),
        Span("memory", "@a x", 9, 11, 10),
    ]
    assert shares(spans, 0.5, 10) == [
        Share("memory", "@a x", 3.0, 25.0),
        Share("units", "@a x", 1.5, 0.0),
        Share("controller", "start @a", 0.5, 0.0),
        Share("link", "@a x", 0.5, 7.0),
    ]
    assert shares([], 0, 1) == shares(spans, 20, 30) == []


@given(
    st.lists(
        st.tuples(st.sampled_from(RESOURCES), st.integers(0, 5), st.integers(1, 6)), max_size=30
    )
)
def test_shares_are_the_time_that_something_is_busy(parts: list[tuple[str, int, int]]) -> None:
    """Spans of one resource follow each other, after pauses; all in whole seconds."""
    free = dict.fromkeys(RESOURCES, 0)
    spans, busy = [], set()
    for resource, pause, length in parts:
        start = free[resource] + pause
        free[resource] = start + length
        spans.append(Span(resource, "x", start, start + length, 1.0))
        busy |= set(range(start, start + length))
    found = shares(spans, 0, 1000)
    assert sum(share.seconds for share in found) == pytest.approx(len(busy))
    assert all(share.seconds >= 0 for share in found)
    assert sum(share.nbytes for share in found) == pytest.approx(len(spans))


def test_the_trace_of_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    arguments = ["predict", "llama-3.2-1b", "-M", "sn40l-x16", "--schedule", "fused", "--json"]
    assert main([*arguments, "--trace", str(path)]) == 0
    ms = json.loads(capsys.readouterr().out)["ms"]
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in slices} == set(RESOURCES) - {"second memory"}
    assert max(event["ts"] + event["dur"] for event in slices) <= 1e3 * ms
    counters = [event["args"]["GB/s"] for event in events if event["ph"] == "C"]
    assert max(counters) == pytest.approx(1600 * 0.88, rel=0.01)
    assert counters.count(0) > 40  # the boundaries between 19 calls
    layers = [
        e for e in slices if e["cat"] == "controller" and e["name"].startswith("start @layer")
    ]
    assert len(layers) == 16


def test_a_trace_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "no" / "step.json"
    assert main(["predict", "llama-3.2-1b", "-M", "sn40l-x16", "--trace", str(where)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert timeline_trace(timeline(), "nothing")["traceEvents"]
