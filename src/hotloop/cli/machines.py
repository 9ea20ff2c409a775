"""hotloop machines: hardware that times can be predicted for, every number with its source."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options
from hotloop.cli.console import stdout
from hotloop.cli.progress import progress_bar
from hotloop.machine.hardware import FIELDS, Hardware
from hotloop.machine.load import find, shipped
from hotloop.machine.quantity import Quantity, show
from hotloop.util.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table


def machines(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A machine of the list, host, or the path of a TOML file that describes one.",
            show_default=False,
        ),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="With host: probe this machine again.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the machines that predict knows, or show one.

    The numbers of host are probed when first asked for, and kept for a day.
    """
    from hotloop.predict.host import HOST, find_machine, known_host, unprobed_host

    if refresh and name != HOST:
        raise UsageError("--refresh goes with host: hotloop machines host --refresh.")
    if name is None:
        found = [known_host() or unprobed_host(), *(find(each) for each in shipped())]
        if as_json:
            print(json.dumps([_values(each) for each in found], indent=2, ensure_ascii=False))
        else:
            stdout().print(_list(found))
            if not found[0].quantities:
                stdout().print(f"\nhost: {found[0].note}")
        return
    with progress_bar() as progress:
        machine = find_machine(name, refresh=refresh, progress=progress)
    if as_json:
        print(json.dumps(_values(machine), indent=2, ensure_ascii=False))
        return
    console = stdout()
    console.print(f"{machine.name}: {machine.title}")
    if machine.note:
        console.print(machine.note.strip())
    console.print()
    console.print(_details(machine))


def _list(found: list[Hardware]) -> "Table":
    table = _table("name", "machine", "kind", "sockets", "memory", "bandwidth", "launch")
    for each in found:
        if not each.quantities:
            table.add_row(each.name, each.title, each.kind, *["–"] * 4)
            continue
        sockets = int(each["sockets"])
        table.add_row(
            each.name,
            each.title,
            each.kind,
            str(sockets),
            show(sockets * each["memory_size"], "size"),
            show(sockets * each["memory_bandwidth"], "rate"),
            show(each["start"] + each.get("argument_load"), "time"),
        )
    return table


def _details(machine: Hardware) -> "Table":
    table = _table("number", "value", "range", "basis", "what it is, and its source")
    for name, quantity in machine.quantities.items():
        meaning = FIELDS[name.partition(".")[0]].meaning
        table.add_row(
            name, str(quantity), _range(quantity), quantity.basis, f"{meaning}. {quantity.source}"
        )
    return table


def _range(quantity: Quantity) -> str:
    if quantity.low is None or quantity.high is None:
        return ""
    return f"{show(quantity.low, quantity.dimension)} – {show(quantity.high, quantity.dimension)}"


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _values(machine: Hardware) -> dict[str, object]:
    """For JSON: values in base units (bytes, seconds, bytes per second, operations per second)."""
    return {
        "name": machine.name,
        "title": machine.title,
        "kind": machine.kind,
        "note": machine.note.strip(),
        "quantities": {
            name: {
                "value": quantity.value,
                "shown": str(quantity),
                "low": quantity.low,
                "high": quantity.high,
                "basis": quantity.basis,
                "source": quantity.source,
                "meaning": FIELDS[name.partition(".")[0]].meaning,
            }
            for name, quantity in machine.quantities.items()
        },
    }
