"""inspect, as tables for a terminal of 100 columns."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hotloop.report.explain_text import size
from hotloop.report.inspection import Inspection

_LONGEST_VALUE = 60


def render(inspection: Inspection) -> Iterator[RenderableType]:
    inventory = inspection.inventory
    head = Text(str(inventory.path), "bold")
    yield head.append(
        f"  {inventory.kind} · {_visible(inventory.architecture) or 'no architecture'} · "
        f"{inventory.parameters / 1e6:,.1f} M parameters · {size(inventory.nbytes)}",
        "not bold",
    )
    if inspection.obstacle:
        yield Text.assemble(("does not run: ", "yellow"), inspection.obstacle)
    else:
        yield Text("hotloop runs it.", "green")
    yield _section("Metadata", _metadata(inspection))
    if inspection.text is not None:
        yield _section("Text", _text(inspection))
    yield _section("Tensors", _tensors(inspection))
    yield _section("Bytes of weights that one token reads", _per_token(inspection))


def _section(title: str, body: RenderableType) -> Group:
    return Group("", Text(title, "bold"), body)


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _visible(name: str) -> str:
    """A name from the file; control characters must not reach the terminal."""
    return name if name.isprintable() else repr(name)


def _metadata(inspection: Inspection) -> Table:
    table = _grid()
    for key, value in inspection.inventory.metadata.items():
        table.add_row(_visible(key), Text(_shortened(value)))
    return table


def _shortened(value: object) -> str:
    if isinstance(value, list) and len(str(value)) > _LONGEST_VALUE:
        return f"{len(value):,} values, from {_shortened(value[0])}"
    text = repr(value)
    more = f" … ({len(text):,} characters)"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - len(more)] + more


def _text(inspection: Inspection) -> Table:
    text = inspection.text
    assert text is not None
    table = _grid()
    table.add_row("tokens", f"{text.tokens:,}")
    table.add_row("prompts start with", "nothing" if text.bos is None else text.bos)
    table.add_row("ends of generation", " ".join(text.stops) or "none")
    table.add_row("chat template", "yes" if text.chat_template else "no")
    return table


def _tensors(inspection: Inspection) -> Table:
    table = _table("name", "layers", "format", "shape", "bytes", right=("bytes",))
    for group in inspection.groups:
        first, count = group.tensors[0], len(group.tensors)
        table.add_row(
            _visible(group.name),
            f"{group.layers} (×{count})" if count > 1 else group.layers,
            first.format,
            " × ".join(map(str, first.shape)),
            size(group.nbytes),
        )
    return table


def _per_token(inspection: Inspection) -> Table:
    table = _table("stored as", "bytes", "share", right=("bytes", "share"))
    total = sum(inspection.per_token.values())
    for format, nbytes in sorted(inspection.per_token.items(), key=lambda item: -item[1]):
        table.add_row(format, size(nbytes), f"{100 * nbytes / max(1, total):.1f}%")
    table.add_row("all", size(total), "", style="bold")
    return table
