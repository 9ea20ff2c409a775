"""A simulated run as a picture: busy times of each resource, bandwidth over time, a trace.

The trace is in the format that Perfetto and Chrome open: a track for each resource, a slice for
what it was busy with, and a counter of what its memory sends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.dataflow.simulate import Span, Timeline

#: Tracks, top to bottom.
RESOURCES = ("controller", "memory", "second memory", "units", "link")
#: Spans of one op that follow each other at less than this (seconds) are one slice.
GAP = 1e-9
#: What an instant counts for where several are busy: the first of these.
COUNTS_FOR = ("memory", "second memory", "controller", "link", "units")


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


@dataclass(frozen=True)
class Share:
    """The part of a run that counts for `what`, which `resource` did: seconds, and bytes sent."""

    resource: str
    what: str
    seconds: float
    nbytes: float


def shares(spans: Sequence[Span], begin: float, end: float) -> list[Share]:
    """Where the time from `begin` to `end` went: every instant once, longest share first.

    An instant counts for what memory sends then, else for the launch under way, the exchange, the
    op that is computed; where nothing is busy, for nothing. So an op that memory hides has none.
    """
    edges, free = np.array([begin, end]), np.array([True])
    found: dict[tuple[str, str], Share] = {}
    for resource in COUNTS_FOR:
        mine = [s for s in spans if s.resource == resource and s.end > begin and s.start < end]
        if not mine:
            continue
        starts = np.clip([s.start for s in mine], begin, end)
        ends = np.clip([s.end for s in mine], begin, end)
        passed = np.concatenate(([0.0], np.cumsum(np.diff(edges) * free)))
        counted = np.interp(ends, edges, passed) - np.interp(starts, edges, passed)
        inside = (ends - starts) / np.array([s.end - s.start for s in mine])
        for span, seconds, part in zip(mine, counted, inside, strict=True):
            before = found.get((resource, span.what), Share(resource, span.what, 0.0, 0.0))
            found[resource, span.what] = Share(
                resource,
                span.what,
                before.seconds + float(seconds),
                before.nbytes + span.nbytes * float(part),
            )
        edges, free = _without(edges, free, starts, ends)
    return sorted(found.values(), key=lambda share: -share.seconds)


def _without(
    edges: NDArray[np.float64],
    free: NDArray[np.bool_],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The time that is free between `edges`, less some that does not overlap itself."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    cut = np.unique(np.concatenate((edges, starts, ends)))
    middles = (cut[1:] + cut[:-1]) / 2
    was = free[np.searchsorted(edges, middles, side="right") - 1]
    last = np.searchsorted(starts, middles, side="right") - 1
    taken = (last >= 0) & (middles < ends[np.maximum(last, 0)])
    return cut, was & ~taken


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
