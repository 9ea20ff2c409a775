"""A few layers of a token as a picture: what every thread, or every unit, was busy with.

A timeline is cut from a measured launch or from a simulated one. All rungs do the same ops in the
same order, so a cut between two parts of a token's ops is the same work on each of them.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.profile import Events
from hotloop.backends.dataflow import simulate
from hotloop.ir.program import Program
from hotloop.report.counts import executed
from hotloop.report.profile import PHASES, by_token, sites
from hotloop.report.simulated import merged

#: Layers in a picture: a boundary between two is one of two.
LAYERS = 3
#: Resources of the simulated machine that move what `bandwidth` counts.
_MEMORIES = ("memory", "second memory")
#: What a simulated resource does, as the legend calls it; also the order of the lanes.
_DOES = {
    "controller": "launch",
    "memory": "load",
    "second memory": "load",
    "units": "work",
    "link": "exchange",
}


@dataclass(frozen=True)
class Slice:
    """`lane` did `what` for `length` µs from `start` on, and `nbytes` came from memory for it.

    `kind` is a phase of a stage (claim, wait, each, work) or what a simulated resource does
    (launch, load, work, exchange).
    """

    lane: int
    what: str
    kind: str
    start: float
    length: float
    nbytes: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """`length` µs of a run, from 0 on."""

    lanes: tuple[str, ...]
    slices: tuple[Slice, ...]
    length: float

    def bandwidth(self, bins: int = 400, until: float | None = None) -> NDArray[np.float64]:
        """GB/s in `bins` equal parts of the time `until` then (µs; default: all of it).

        Bytes come evenly over the time of their slice.
        """
        edges = np.linspace(0, until or self.length, bins + 1)
        moved = np.zeros(bins)
        for slice in self.slices:
            if slice.nbytes:
                inside = np.clip(edges, slice.start, slice.start + slice.length)
                moved += slice.nbytes * np.diff(inside) / slice.length
        return moved / np.diff(edges) / 1e3

    def to_json(self) -> dict[str, object]:
        """Slices as [lane, index of what, kind, start, length, bytes]: there are thousands."""
        names = list(dict.fromkeys(slice.what for slice in self.slices))
        number = {name: i for i, name in enumerate(names)}
        rows = [
            [s.lane, number[s.what], s.kind, round(s.start, 3), round(s.length, 3), round(s.nbytes)]
            for s in self.slices
        ]
        return {"lanes": self.lanes, "names": names, "slices": rows, "length": self.length}


@dataclass(frozen=True)
class Cut:
    """The part of a token's ops, 0 to 1, that a timeline shows, and the layers that this is."""

    begin: float
    end: float
    layers: int


def middle_layers(program: Program, layers: int = LAYERS) -> Cut:
    """The middle `layers` layers: calls of the kernel that runs most often for a token."""
    kernels = [call.kernel for call, _ in executed(program.body, {})]
    ends = list(accumulate(len(kernel.ops) for kernel in kernels))
    layer = Counter(kernels).most_common(1)[0][0]
    at = [i for i, kernel in enumerate(kernels) if kernel is layer]
    first = max(0, (len(at) - layers) // 2)
    shown = at[first : first + layers]
    begin = ends[shown[0]] - len(layer.ops)
    return Cut(begin / ends[-1], ends[shown[-1]] / ends[-1], len(shown))


def measured(program: Program, events: Events, cut: Cut) -> Timeline:
    """A token of a profiled run's events [threads, n], a lane for each thread.

    It is the one that took the median time: the system interrupts some.

    The weights of a stage count as read during `work`, for each thread by its tiles: what was
    prefetched before comes a little earlier than it is shown.
    """
    places = sites(program)
    passes = by_token(program, events)
    took = passes["end"].max(axis=(0, 2)) - passes["start"].min(axis=(0, 2))
    row = passes[:, np.argsort(took, kind="stable")[(len(took) - 1) // 2]]
    ops = [len(s.ops) for call, _ in executed(program.body, {}) for s in call.kernel.stages]
    ends = np.cumsum(ops) / sum(ops)
    begins = np.concatenate(([0.0], ends[:-1]))
    shown = np.flatnonzero((ends > cut.begin + 1e-9) & (begins < cut.end - 1e-9))
    first, after = int(shown[0]), int(shown[-1]) + 1
    zero = int(row["start"][:, first].min())
    last = row["start"][:, after].min() if after < len(places) else row["end"][:, -1].max()
    slices = []
    for at in range(first, after):
        site, tiles = places[at], max(1, int(row["tiles"][:, at].sum()))
        for lane, event in enumerate(row[:, at]):
            for kind, (begin, end) in PHASES.items():
                ns = int(event[end] - event[begin])
                nbytes = site.nbytes * int(event["tiles"]) / tiles if kind == "work" else 0.0
                if ns > 0:
                    what = f"@{site.kernel} %{site.stage}, iteration {site.iteration}"
                    start = (int(event[begin]) - zero) / 1e3
                    slices.append(Slice(lane, what, kind, start, ns / 1e3, nbytes))
    lanes = tuple(f"thread {i}" for i in range(len(row)))
    return Timeline(lanes, tuple(slices), max(1e-3, (int(last) - zero) / 1e3))


def simulated(run: simulate.Timeline, steps: int, cut: Cut) -> Timeline | None:
    """The first of `steps` steps that has one before it, a lane for each resource of a socket.

    None for a run without spans: the time of a CPU is a sum.
    """
    if not run.spans:
        return None
    ops = len(run.executed) // steps
    step = min(1, steps - 1) * ops
    first, after = step + int(cut.begin * ops + 1e-6), step + ceil(cut.end * ops - 1e-6)
    begin = run.executed[first][0]
    end = run.executed[after][0] if after < len(run.executed) else run.executed[-1][1]
    spans = sorted(run.spans, key=lambda span: span.start)
    inside = [span for span in spans if span.end > begin and span.start < end]
    names = [name for name in _DOES if any(span.resource == name for span in inside)]
    slices = []
    for span in merged(inside):
        start, stop = max(begin, span.start), min(end, span.end)
        moved = span.nbytes * (stop - start) / (span.end - span.start)
        slices.append(
            Slice(
                names.index(span.resource),
                span.what,
                _DOES[span.resource],
                1e6 * (start - begin),
                1e6 * (stop - start),
                moved if span.resource in _MEMORIES else 0.0,
            )
        )
    return Timeline(tuple(names), tuple(slices), 1e6 * (end - begin))
