"""What the page shows, as plain data: whoever measures or simulates fills it in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hotloop.ir.graph import Graph
from hotloop.ir.program import Program
from hotloop.ir.text import text
from hotloop.ir.types import TensorType
from hotloop.report.counts import executed
from hotloop.report.timeline import Timeline
from hotloop.util.remarks import Remark

#: Lines of a program that are shown; a graph of a hundred layers has thousands.
LINES = 400


@dataclass(frozen=True)
class PassView:
    """The program after a pass, and what the pass said; `left_out` lines more are not shown."""

    name: str
    text: str
    left_out: int
    remarks: tuple[Remark, ...] = ()

    def to_json(self) -> dict[str, object]:
        remarks = [{"kind": r.kind, "where": r.where, "text": r.text} for r in self.remarks]
        return {
            "name": self.name,
            "text": self.text,
            "left_out": self.left_out,
            "remarks": remarks,
        }


def pass_views(
    graph: Graph, stages: Mapping[str, Program], remarks: Sequence[Remark]
) -> tuple[PassView, ...]:
    """The graph, and the program after each pass: `stages` and `remarks` in the passes' order."""
    said = [list(group) for _, group in groupby(remarks, key=lambda remark: remark.pass_name)]
    views = [_view("graph", text(graph))]
    for name, program in stages.items():
        mine = said.pop(0) if said and said[0][0].pass_name == name.split(" ")[0] else []
        views.append(_view(name, text(program), mine))
    return tuple(views)


def _view(name: str, whole: str, remarks: Sequence[Remark] = ()) -> PassView:
    lines = whole.splitlines()
    shown = "\n".join(lines[:LINES])
    return PassView(name, shown, max(0, len(lines) - LINES), tuple(remarks))


@dataclass(frozen=True)
class Row:
    """A line of the table of stages, per token: µs, and the bytes that were read meanwhile."""

    name: str
    passes: int
    us: float
    waited: float
    nbytes: float

    def to_json(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder; `launches`, `syncs`, `nbytes` and `ms` are per token.

    `launch_us` is what one launch costs on this rung.
    """

    name: str
    ms: float
    calls: int
    launches: float
    syncs: int
    nbytes: float
    launch_us: float
    timeline: Timeline | None
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "ms": self.ms,
            "calls": self.calls,
            "launches": self.launches,
            "syncs": self.syncs,
            "nbytes": self.nbytes,
            "launch_us": self.launch_us,
            "timeline": self.timeline.to_json() if self.timeline else None,
            "rows": [row.to_json() for row in self.rows],
        }


@dataclass(frozen=True)
class Report:
    """Everything on the page.

    `gbps` is what memory gives a long stream, of all sockets together, and `lane_gbps` of what a
    timeline shows; `gflops` the peak of computation, None where it is not known; `operations`
    those of a token. `notes` say how the numbers came about.
    """

    model: str
    machine: str
    source: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    layers: int
    gbps: float
    lane_gbps: float
    gflops: float | None
    operations: float
    rungs: tuple[Rung, ...]
    passes: tuple[PassView, ...]

    def to_json(self) -> dict[str, object]:
        return dict(vars(self)) | {
            "rungs": [rung.to_json() for rung in self.rungs],
            "passes": [view.to_json() for view in self.passes],
        }


def products(program: Program) -> float:
    """Floating-point operations of a token's products with weights: two for each of their numbers.

    Everything else, attention included, is a few percent of them at short contexts, and left out.
    """
    return float(
        sum(
            2 * _used(op.operands[1:], op.name, call.kernel.types)
            for call, _ in executed(program.body, {})
            for op in call.kernel.ops
            if op.name in ("linear", "expert_linear", "expert_mix")
        )
    )


def _used(operands: Sequence[str], op: str, types: Mapping[str, TensorType]) -> int:
    """Numbers of a matrix that a token uses: all, or those of its slots' experts."""
    matrix = types[operands[0]]
    if op == "linear" or len(matrix.shape) < 3:
        return matrix.elements
    return matrix.elements // matrix.shape[0] * types[operands[1]].shape[1]


def launch_cost(times: Mapping[str, tuple[float, float]]) -> float:
    """µs of a launch: the slope of ms per token over launches per token, from ops to looped.

    `times` are (ms, launches) of each rung. Zero where more launches did not take more time.
    """
    (slow, many), (fast, few) = times["ops"], times["looped"]
    return max(0.0, 1e3 * (slow - fast) / (many - few)) if many > few else 0.0
