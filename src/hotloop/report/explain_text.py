"""explain, as tables for a terminal of 100 columns."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hotloop.ir.types import FORMATS
from hotloop.report.explain import ORDER_NOTE, Explanation, KernelReport, LoopReport, PartReport


def render(explanation: Explanation) -> Iterator[RenderableType]:
    yield _head(explanation)
    yield _section("One token costs", _ladder(explanation))
    yield _section("Bytes that one token reads", _bytes(explanation))
    for loop in explanation.loops:
        yield _section(_loop_title(loop), _loop(loop))
    kernels = explanation.kernels
    yield _section(f"Kernels and their stages ({explanation.schedule})", _kernels(kernels))
    yield _section("Remarks of the passes", _remarks(explanation))
    yield _section("Machine code", _code(explanation))


def _section(title: str, body: RenderableType) -> Group:
    return Group("", Text(title, "bold"), body)


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
        if name in right:
            table.columns[-1].justify = "right"
    return table


def size(nbytes: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} B"


def _head(e: Explanation) -> Text:
    precision = "8-bit activations" if e.activations == "q8" else "float32 activations"
    guesses = f" · up to {e.speculate} tokens guessed a step" if e.speculate else ""
    text = Text(e.model, "bold")
    return text.append(
        f"  {e.graph}: {e.ops} ops · schedule {e.schedule} · {e.threads} threads · "
        f"{precision} · context {e.context:,}{guesses}",
        "not bold",
    )


def _ladder(e: Explanation) -> Table:
    numbers = ("kernels", "calls", "launches", "synchronisations")
    table = _table("rung", *numbers, right=numbers)
    for name, counts in e.rungs.items():
        table.add_row(
            name,
            f"{counts.kernels:,}",
            f"{counts.calls:,}",
            counts.launches_text,
            f"{counts.syncs:,}",
            style="bold" if name == e.schedule else "",
        )
    return table


def _bytes(e: Explanation) -> Table:
    numbers = ("bytes", "bits in memory")
    table = _table("what", "stored as", *numbers, "made at load of", right=numbers)
    for format_name, nbytes in sorted(e.traffic.weights.items(), key=lambda item: -item[1]):
        bits = f"{e.bits[format_name]:.2f}" if format_name in e.bits else ""
        what = "orders of columns" if format_name == "i32" else "weights"
        table.add_row(what, format_name, size(nbytes), bits, FORMATS[format_name].made_of)
    table.add_row("all weights", "", size(e.traffic.weight_bytes), style="bold")
    table.add_row("KV cache, per position before", e.kv_cache, size(e.traffic.kv_per_position))
    return table


def _loop_title(loop: LoopReport) -> str:
    trip = "until the model says stop" if loop.trip is None else f"{loop.trip} times"
    return f"Loop %{loop.index}, {trip}: {', '.join(loop.items)}"


def _loop(loop: LoopReport) -> Table:
    table = _table("argument", "class", "type", "buffers", "stride", "together",
                   right=("buffers", "stride", "together"))  # fmt: skip
    for argument in loop.arguments:
        stride = "" if argument.stride is None else size(argument.stride)
        table.add_row(
            f"%{argument.name}",
            argument.kind,
            argument.type,
            str(argument.buffers),
            stride,
            size(argument.nbytes),
        )
        if argument.in_turn:
            table.add_row("", "in turn", argument.in_turn)
    return table


def _kernels(kernels: tuple[KernelReport, ...]) -> Table:
    table = _table("kernel", "stage", "waits for", "tiles × rows", "ops", right=("tiles × rows",))
    for kernel in kernels:
        label = f"@{kernel.name}" + (f" ×{kernel.calls}" if kernel.calls > 1 else "")
        for stage in kernel.stages:
            name, waits = stage.name, stage.waits_for
            if stage.each:
                table.add_row(label, name, waits, "each thread", " · ".join(stage.each))
                label = name = waits = ""
            for part in stage.parts:
                table.add_row(label, name, waits, _tiles(part), " · ".join(part.ops))
                label = name = waits = ""
    return table


def _tiles(part: PartReport) -> str:
    return f"{part.tiles:,} × {part.rows}"


def _remarks(e: Explanation) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for remark in e.remarks:
        mark = Text("did", "green") if remark.kind == "did" else Text("missed", "yellow")
        table.add_row(mark, remark.pass_name, f"{remark.where}: {remark.text}")
    return table


def _code(e: Explanation) -> Group:
    how = "taken from the cache" if e.code.cached else "compiled"
    return Group(
        f"{size(e.code.nbytes)}, {how}; passes and code took {e.code.seconds:.2f} s.",
        Text(ORDER_NOTE),
    )
