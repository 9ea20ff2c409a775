"""explain: what the compiler made of a model, as data.

For every rung of the ladder what a token costs; for the loaded one what each loop argument became,
which stages each kernel has, what the passes remarked, and what compiling took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hotloop.backends.cpu.places import op_spec, packed_weights, place_states, place_weights
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.ir.graph import Graph, Op
from hotloop.ir.names import Row, blocks, expand
from hotloop.ir.ops import CHUNK
from hotloop.ir.program import Call, Item, Kernel, Loop, LoopArg, Part, Program, Stage, loop_types
from hotloop.ir.types import TensorType
from hotloop.kernels.pack import matrix, packed_bytes
from hotloop.machine.host import host
from hotloop.report.counts import Counts, Traffic, count, traffic
from hotloop.util.remarks import Remark

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

ORDER_NOTE = (
    "Every sum is taken in the order of the packed layout: one lane per row, block after block. "
    f"Attention sums over {CHUNK} positions at a time, then over these chunks in order. "
    "Neither tiles nor threads nor the rung change it, so all give the same bits."
)


class Timings(Protocol):
    @property
    def compile(self) -> float: ...
    @property
    def cached(self) -> bool: ...


class Explained(Protocol):
    """What `explain` asks of a model (`hotloop.api.Model` is one)."""

    path: Path
    schedule: str
    graph: Graph

    @property
    def threads(self) -> int: ...
    @property
    def activations(self) -> str: ...
    @property
    def kv_cache(self) -> str: ...
    @property
    def context(self) -> int: ...
    @property
    def speculate(self) -> int: ...
    @property
    def program(self) -> Program: ...
    @property
    def remarks(self) -> tuple[Remark, ...]: ...
    @property
    def timings(self) -> Timings: ...
    @property
    def code_bytes(self) -> int: ...


@dataclass(frozen=True)
class ArgumentReport:
    """A loop argument, or a family of them: `name` may hold a range, as in IR text.

    `buffers` are those of one argument; `stride` is the distance in bytes from the one of an
    iteration to that of the next, None where there is one buffer or the distances differ.
    `nbytes` is what all of them hold together, as the model file stores it. `in_turn` has what
    differs besides: the numbers of a stacked scalar, the formats of a variant.
    """

    name: str
    kind: str
    type: str
    buffers: int
    stride: int | None
    nbytes: int
    in_turn: str = ""


@dataclass(frozen=True)
class LoopReport:
    index: str
    trip: int | None
    """Iterations; None where it runs until the program says stop."""
    items: tuple[str, ...]
    arguments: tuple[ArgumentReport, ...]


@dataclass(frozen=True)
class PartReport:
    """Ops that share tiles: `tiles` tiles of `rows` rows."""

    ops: tuple[str, ...]
    tiles: int
    rows: int


@dataclass(frozen=True)
class StageReport:
    name: str
    waits_for: str
    each: tuple[str, ...]
    """Ops that every thread computes for itself."""
    parts: tuple[PartReport, ...]
    prefetch: bool


@dataclass(frozen=True)
class KernelReport:
    name: str
    calls: int
    """Calls for one token."""
    stages: tuple[StageReport, ...]


@dataclass(frozen=True)
class CodeReport:
    """The machine code of the decode program, and the seconds that passes and LLVM took."""

    nbytes: int
    seconds: float
    cached: bool


@dataclass(frozen=True)
class Explanation:
    """What `hotloop explain` shows; rich prints it as tables, `str` gives them as plain text."""

    model: str
    graph: str
    schedule: str
    threads: int
    activations: str
    kv_cache: str
    context: int
    speculate: int
    """Tokens that a step guesses."""
    ops: int
    rungs: dict[str, Counts]
    traffic: Traffic
    bits: dict[str, float]
    """Bits of memory for each weight of a matrix, padding included, by format."""
    loops: tuple[LoopReport, ...]
    kernels: tuple[KernelReport, ...]
    remarks: tuple[Remark, ...]
    code: CodeReport

    def to_json(self) -> dict[str, object]:
        """The same as objects that `json` can write."""
        values = asdict(self)
        values["rungs"] = {
            name: {
                "kernels": counts.kernels,
                "calls": counts.calls,
                "launches": counts.launches_per_run,
                "launches_per": "generation" if counts.endless else "token",
                "syncs": counts.syncs,
            }
            for name, counts in self.rungs.items()
        }
        del values["traffic"], values["bits"]
        values["bytes_per_token"] = {
            "weights": dict(self.traffic.weights),
            "weights_total": self.traffic.weight_bytes,
            "kv_per_position": self.traffic.kv_per_position,
            "bits_per_weight": dict(self.bits),
        }
        values["order"] = ORDER_NOTE
        return values

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from hotloop.report.explain_text import render

        yield from render(self)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None, highlight=False, markup=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def explain(model: Explained) -> Explanation:
    """Count all rungs of `model`, and look into the program that it runs."""
    machine = host(model.threads)
    rungs = {
        name: count(
            model.program
            if name == model.schedule
            else compile_graph(model.graph, machine, name).program
        )
        for name in SCHEDULES
    }
    return Explanation(
        model=model.path.name,
        graph=model.graph.name,
        schedule=model.schedule,
        threads=model.threads,
        activations=model.activations,
        kv_cache=model.kv_cache,
        context=model.context,
        speculate=model.speculate,
        ops=len(model.graph.ops),
        rungs=rungs,
        traffic=traffic(model.program),
        bits=bits_in_memory(model.graph),
        loops=loop_reports(model.program, model.graph),
        kernels=kernel_reports(model.program),
        remarks=model.remarks,
        code=CodeReport(model.code_bytes, model.timings.compile, model.timings.cached),
    )


def bits_in_memory(graph: Graph) -> dict[str, float]:
    """Bits for each weight of the packed matrices, by format."""
    types = graph.types
    nbytes: dict[str, int] = {}
    elements: dict[str, int] = {}
    for name in packed_weights(graph):
        type = types[name]
        format = type.format.name
        nbytes[format] = nbytes.get(format, 0) + packed_bytes(matrix(type))
        elements[format] = elements.get(format, 0) + type.elements
    return {format: 8 * nbytes[format] / elements[format] for format in sorted(nbytes)}


def loop_reports(program: Program, graph: Graph) -> tuple[LoopReport, ...]:
    """Every loop, outer ones first, with what each argument became."""
    offsets = {**place_weights(graph).offsets, **place_states(graph).offsets}
    numbers = {constant.value.name: f"{constant.number}" for constant in program.constants}
    reports: list[LoopReport] = []

    def visit(body: tuple[Item, ...], outside: dict[str, TensorType]) -> None:
        for item in body:
            if isinstance(item, Loop):
                types = loop_types(item, outside)
                in_turn = {arg.name: _in_turn(arg, outside, numbers) for arg in item.args}
                arguments = tuple(_arguments(item, types, offsets, in_turn))
                items = tuple(_label(inner) for inner in item.body)
                reports.append(LoopReport(item.index, item.trip, items, arguments))
                visit(item.body, types)

    visit(program.body, program.types)
    return tuple(reports)


def _in_turn(arg: LoopArg, types: Mapping[str, TensorType], numbers: Mapping[str, str]) -> str:
    """`(512 ×5, 0) ×4, 512`: the numbers of a stacked scalar, or the formats of a variant."""
    if arg.kind == "variant":
        values = [types[name].format.name for name in arg.outer]
    elif all(name in numbers for name in arg.outer):
        values = [numbers[name] for name in arg.outer]
    else:
        return ""
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return ", ".join(_periods([value + (f" ×{n}" if n > 1 else "") for value, n in runs]))


def _periods(words: list[str]) -> list[str]:
    """The words, with `(a, b) ×n` for those that come again and again from some place on."""
    for at in range(len(words)):
        for period in range(2, (len(words) - at) // 2 + 1):
            unit, n = words[at : at + period], 1
            while words[at + n * period : at + (n + 1) * period] == unit:
                n += 1
            if n > 1:
                rest = _periods(words[at + n * period :])
                return [*words[:at], f"({', '.join(unit)}) ×{n}", *rest]
    return words


def _label(item: Item) -> str:
    return f"@{item.kernel.name}" if isinstance(item, Call) else f"loop %{item.index}"


_KINDS = ("carried", "stacked", "variant", "state", "invariant")


def _arguments(
    loop: Loop, types: dict[str, TensorType], offsets: dict[str, int], in_turn: dict[str, str]
) -> list[ArgumentReport]:
    """The arguments by class; those that differ in one number stand in one line."""
    rows = [
        Row(
            (arg.name,),
            (
                _KINDS.index(arg.kind),
                types[arg.name],
                max(len(arg.outer), arg.buffers),
                _stride(arg.outer, offsets),
                in_turn[arg.name],
            ),
        )
        for arg in loop.args
    ]
    reports = []
    for (name,), rest in (row for block in blocks(rows) for row in block):
        assert isinstance(rest, tuple)
        kind, type, buffers, stride, turns = rest
        nbytes = type.nbytes * buffers * len(expand(name))
        reports.append(
            ArgumentReport(name, _KINDS[kind], str(type), buffers, stride, nbytes, turns)
        )
    return sorted(reports, key=lambda report: _KINDS.index(report.kind))


def _stride(names: Sequence[str], offsets: dict[str, int]) -> int | None:
    if len(names) < 2 or any(name not in offsets for name in names):
        return None
    at = [offsets[name] for name in names]
    steps = {b - a for a, b in pairwise(at)}
    return steps.pop() if len(steps) == 1 else None


def kernel_reports(program: Program) -> tuple[KernelReport, ...]:
    """Every kernel, with the calls that one token makes of it."""
    made = _calls_of(program.body)
    return tuple(
        KernelReport(
            kernel.name,
            made[kernel],
            tuple(_stage(kernel, stage) for stage in kernel.stages),
        )
        for kernel in program.kernels
    )


def _calls_of(body: tuple[Item, ...]) -> dict[Kernel, int]:
    made: dict[Kernel, int] = {}
    for item in body:
        inner = {item.kernel: 1} if isinstance(item, Call) else _calls_of(item.body)
        times = 1 if isinstance(item, Call) else item.trip or 1
        for kernel, n in inner.items():
            made[kernel] = made.get(kernel, 0) + n * times
    return made


def _stage(kernel: Kernel, stage: Stage) -> StageReport:
    waits = "everyone" if stage.barrier else ", ".join(stage.after)
    each = tuple(_op(op) for op in stage.each)
    parts = tuple(_part(kernel, part) for part in stage.parts)
    return StageReport(stage.name, waits, each, parts, stage.prefetch)


def _part(kernel: Kernel, part: Part) -> PartReport:
    rows = op_spec(part.ops[0], kernel.types).rows
    return PartReport(tuple(_op(op) for op in part.ops), -(-rows // part.tile), part.tile)


def _op(op: Op) -> str:
    """An op with its weight where it has one: what a reader wants to recognise it by."""
    weight = next((name for name in op.operands if name.endswith(".weight")), "")
    return f"{op.name} {weight.removesuffix('.weight')}".strip()
