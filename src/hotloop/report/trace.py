"""A profile as a trace, in the trace-event format that Perfetto and Chrome open.

The format: a "complete" event (ph X) is a slice with its start and length in µs on a thread's
track; slices inside slices are nested. Described by Google as "Trace Event Format".
"""

from collections.abc import Iterator
from typing import Any

from hotloop.backends.cpu.profile import Events
from hotloop.ir.program import Program
from hotloop.report.profile import PHASES, Site, by_token, sites


def chrome_trace(program: Program, events: Events, first: int, tokens: int) -> dict[str, object]:
    """Tokens `first` to `first + tokens` of `events` [threads, n], as far as there are.

    A slice for each pass of a thread through a stage, and in it one for each phase that took time.
    """
    places = sites(program)
    passes = by_token(program, events)[:, first : first + tokens]
    slices: list[dict[str, Any]] = [_name("process_name", 0, f"hotloop {program.name}")]
    for tid, of_thread in enumerate(passes):
        slices.append(_name("thread_name", tid, f"thread {tid}"))
        for token, row in enumerate(of_thread, first):
            for site, event in zip(places, row, strict=True):
                slices += _slices(tid, token, site, event)
    return {"traceEvents": slices, "displayTimeUnit": "ns"}


def _name(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": tid, "args": {"name": name}}


def _slices(tid: int, token: int, site: Site, event: Any) -> Iterator[dict[str, Any]]:
    label = f"@{site.kernel} %{site.stage}"
    args = {
        "token": token,
        "iteration": site.iteration,
        "epoch": int(event["epoch"]),
        "tiles": int(event["tiles"]),
        "weight bytes of all threads": site.nbytes,
    }
    parts = [(label, "start", "end")]
    parts += [(f"{phase} {label}", begin, end) for phase, (begin, end) in PHASES.items()]
    for name, begin, end in parts:
        ns = int(event[end] - event[begin])
        if ns > 0:
            yield {
                "ph": "X",
                "name": name,
                "cat": name.split(" ")[0] if name != label else "stage",
                "pid": 1,
                "tid": tid,
                "ts": int(event[begin]) / 1e3,
                "dur": ns / 1e3,
                "args": args,
            }
