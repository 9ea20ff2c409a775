"""A simulated run as a picture: busy times of each resource, bandwidth over time, a trace.

The trace is in the format that Perfetto and Chrome open: a track for each resource, a slice for
what it was busy with, and a counter of what its memory sends.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.dataflow.simulate import Span, Timeline

#: Tracks, top to bottom.
RESOURCES = ("controller", "memory", "second memory", "units", "link")
#: Spans of one op that follow each other at less than this (seconds) are one slice.
GAP = 1e-9


def bandwidth(timeline: Timeline, bins: int = 400) -> tuple[NDArray[np.float64], float]:
    """Bytes per second that a socket's memory sends, in `bins` equal parts of the run; their width.

    A transfer counts in each part by its share of time in it.
    """
    end = max((span.end for span in timeline.spans), default=0.0)
    sent = np.zeros(bins)
    if end == 0:
        return sent, 0.0
    width = end / bins
    for span in timeline.spans:
        if span.resource == "memory":
            rate = span.nbytes / (span.end - span.start)
            first, last = int(span.start / width), min(bins - 1, int(span.end / width))
            for k in range(first, last + 1):
                inside = min(span.end, (k + 1) * width) - max(span.start, k * width)
                sent[k] += rate * max(0.0, inside)
    return sent / width, width


def merged(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbouring spans of the same resource and work as one; `spans` in order of their start."""
    open_: dict[str, Span] = {}
    for span in spans:
        before = open_.get(span.resource)
        if before and before.what == span.what and span.start - before.end < GAP:
            nbytes = before.nbytes + span.nbytes
            open_[span.resource] = Span(span.resource, span.what, before.start, span.end, nbytes)
            continue
        if before:
            yield before
        open_[span.resource] = span
    yield from open_.values()


def timeline_trace(timeline: Timeline, title: str) -> dict[str, object]:
    """The run as trace events; times in µs."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": title}}
    ]
    for tid, resource in enumerate(RESOURCES):
        name = {"name": resource}
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": name})
    for span in merged(sorted(timeline.spans, key=lambda span: span.start)):
        events.append(
            {
                "ph": "X",
                "name": span.what,
                "cat": span.resource,
                "pid": 1,
                "tid": RESOURCES.index(span.resource),
                "ts": 1e6 * span.start,
                "dur": 1e6 * (span.end - span.start),
                "args": {"bytes": round(span.nbytes)},
            }
        )
    rates, width = bandwidth(timeline)
    for k, rate in enumerate(rates):
        counter = {"GB/s": round(rate / 1e9, 1)}
        name_ = "bandwidth of a socket"
        events.append({"ph": "C", "name": name_, "pid": 1, "ts": 1e6 * k * width, "args": counter})
    return {"traceEvents": events, "displayTimeUnit": "ns"}
