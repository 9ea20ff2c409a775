"""fuse: find the layer that repeats, and make it one kernel.

Before      %x.0 = embed(…)  %a = rms_norm(%x.0, …)  …  %x.1 = add(…)  %b = rms_norm(%x.1, …)  …
After       %x.0 = call @embed(…)  %x.1 = call @layer(%x.0, …)  %x.2 = call @layer(%x.1, …)  …
Requires    a flat graph, in order
Why         A call per layer costs a launch per layer instead of one per op, and makes the model a
            run of calls of one kernel: what the loop pass looks for.

Nobody says where layers begin. Each op becomes a letter (name, attributes, types), and the longest
periodic run of letters is the stack of layers. The run may often start at several ops of the
period; it starts where the fewest values cross from one layer to the next. What comes before and
after becomes one kernel each, but an op whose result leaves the model (a token) starts a new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.graph import Graph, Op
from hotloop.ir.ops import OPS
from hotloop.ir.outline import Group, outline
from hotloop.ir.program import Program
from hotloop.util.remarks import Remark


@dataclass(frozen=True)
class Run:
    """Ops start … start + period × count repeat with `period`; `slack` more letters match."""

    start: int
    period: int
    count: int
    slack: int

    @property
    def covered(self) -> int:
        return self.period * self.count


def fuse(graph: Graph) -> tuple[Program, list[Remark]]:
    run = find_run(_letters(graph))
    if run is None or 2 * run.covered < len(graph.ops):
        groups = _split("model", graph.ops)
        text = "no run of ops repeats over half of the graph; nothing to loop over"
        return outline(graph, groups), [Remark("fuse", "missed", graph.name, text)]
    start = min(
        range(run.start, run.start + run.slack + 1),
        key=lambda at: (_crossing(graph, at, run.period), at),
    )
    end = start + run.covered
    layers: list[Group] = [
        ("layer", graph.ops[at : at + run.period]) for at in range(start, end, run.period)
    ]
    groups = [
        *_split("prologue", graph.ops[:start]),
        *layers,
        *_split("epilogue", graph.ops[end:]),
    ]
    program = outline(graph, groups)
    text = f"{run.count} layers of {run.period} ops each, from op {start} of {len(graph.ops)}"
    return program, [Remark("fuse", "did", "layer", text)]


def _letters(graph: Graph) -> NDArray[np.int64]:
    """A number for each op; equal numbers mean equal name, attributes and types."""
    alphabet: dict[tuple[object, ...], int] = {}
    letters = []
    for op in graph.ops:
        types = tuple(graph.types[name] for name in op.operands)
        letter = (op.name, op.attrs, types, op.result and op.result.type)
        letters.append(alphabet.setdefault(letter, len(alphabet)))
    return np.array(letters, np.int64)


def find_run(letters: NDArray[np.int64]) -> Run | None:
    """The periodic run that covers most letters; the shortest period among equals."""
    best: Run | None = None
    for period in range(1, len(letters) // 2 + 1):
        same = np.concatenate([[0], letters[period:] == letters[:-period], [0]])
        edges = np.flatnonzero(np.diff(same))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            length = int(end - start) + period
            count = length // period
            if count >= 2 and (best is None or count * period > best.covered):
                best = Run(int(start), period, count, length - count * period)
    return best


def _crossing(graph: Graph, cut: int, period: int) -> int:
    """How many values defined before op `cut + period` are used by it or after it."""
    at = cut + period
    before = {op.result.name for op in graph.ops[:at] if op.result}
    return len(before & {name for op in graph.ops[at:] for name in op.operands})


def _split(name: str, ops: Sequence[Op]) -> list[Group]:
    """One group, or several where an op must start a kernel."""
    starts = [i for i, op in enumerate(ops) if i == 0 or OPS[op.name].starts_kernel]
    groups: list[Group] = []
    for start, end in pairwise([*starts, len(ops)]):
        first = ops[start]
        single = end - start == 1 or OPS[first.name].starts_kernel
        groups.append((first.name if single else name, ops[start:end]))
    return groups
