"""Machines by name: those that come with hotloop, and anybody's own as a TOML file.

    name = "my-box"                       what to call it
    title = "Eight of something"
    kind = "gpu"                          cpu, gpu or dataflow
    base = "dgx-h100"                     optional: everything else is as in that machine
    note = "…"                            optional

    [memory_bandwidth]                    a section for each field of `hardware.FIELDS`
    value = "4.8 TB/s"
    range = ["4.3 TB/s", "4.8 TB/s"]      optional: what it may really be
    basis = "published"                   published, derived, measured, fitted or assumed
    source = "vendor's data sheet"

A field that depends on the number of threads has a section for each: `[memory_bandwidth.8]`.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from hotloop.machine.hardware import FIELDS, KINDS, Field, Hardware, Kind
from hotloop.machine.quantity import BASES, Quantity, parse, show
from hotloop.util.errors import MachineError, UsageError

_TEXTS = ("name", "title", "kind", "base", "note")
_ENTRIES = ("value", "range", "basis", "source")
_DEPTH = 4


def shipped() -> tuple[str, ...]:
    """The names of the machines that come with hotloop."""
    files = resources.files("hotloop.machine") / "data"
    return tuple(sorted(f.name.removesuffix(".toml") for f in files.iterdir()))


def find(name: str) -> Hardware:
    """A shipped machine, or the one described in the TOML file at the path `name`.

    Raises `UsageError` for a name that is neither, `MachineError` for a bad file.
    """
    if name in shipped():
        return _shipped(name)
    if name.endswith(".toml") or "/" in name:
        return read(Path(name))
    known = [*shipped(), "host"]
    close = [each for each in known if name and name.lower() in each]
    close = close or difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: host, {', '.join(shipped())}."
    raise UsageError(f"no machine is called {name!r}; {hint}")


@cache
def _shipped(name: str) -> Hardware:
    text = (resources.files("hotloop.machine") / "data" / f"{name}.toml").read_text("utf-8")
    return from_toml(text, name)


def read(path: Path) -> Hardware:
    """The machine described in a file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the path
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise MachineError(f"{path} cannot be read ({reason}); check the path.") from None
    return from_toml(text, str(path))


def from_toml(text: str, where: str, depth: int = 0) -> Hardware:
    """The machine that `text` describes; `where` names it in messages.

    Raises `MachineError` that says which key is wrong, and what is expected.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MachineError(
            f"{where} is not valid TOML ({error}); see `hotloop machines`."
        ) from None
    base = _base(data, where, depth)
    kind = _kind(data, base, where)
    quantities = dict(base.quantities) if base else {}
    for key, value in data.items():
        if key in _TEXTS:
            continue
        field = FIELDS.get(key)
        if field is None:
            raise MachineError(f"{where}: {_unknown(key, [*_TEXTS, *FIELDS])}")
        if kind not in (*field.required, *field.optional):
            raise MachineError(f"{where}: a {kind} machine has no {key} ({field.meaning}).")
        for name in [n for n in quantities if n.partition(".")[0] == key]:
            del quantities[name]
        quantities.update(_quantities(key, field, value, where))
    _check_complete(kind, quantities, where)
    return Hardware(
        name=_text(data, "name", where),
        title=_text(data, "title", where),
        kind=kind,
        quantities=quantities,
        note=_text(data, "note", where) if "note" in data else "",
    )


def _base(data: Mapping[str, object], where: str, depth: int) -> Hardware | None:
    if "base" not in data:
        return None
    name = _text(data, "base", where)
    if name not in shipped() or depth >= _DEPTH:
        raise MachineError(f"{where}: base is {name!r}; it must be one of {', '.join(shipped())}.")
    text = (resources.files("hotloop.machine") / "data" / f"{name}.toml").read_text("utf-8")
    return from_toml(text, name, depth + 1)


def _kind(data: Mapping[str, object], base: Hardware | None, where: str) -> Kind:
    if base is not None and "kind" not in data:
        return base.kind
    text = _text(data, "kind", where)
    kind = next((kind for kind in KINDS if kind == text), None)
    if kind is None:
        raise MachineError(f"{where}: kind is {text!r}; it must be one of {', '.join(KINDS)}.")
    if base is not None and base.kind != kind:
        raise MachineError(f"{where}: kind is {text!r}, but its base {base.name} is {base.kind!r}.")
    return kind


def _text(data: Mapping[str, object], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise MachineError(f'{where} lacks {key} = "…", a line of text; add it.')
    return value


def _quantities(
    key: str, field: Field, value: object, where: str
) -> Iterator[tuple[str, Quantity]]:
    """The one quantity of a section, or those of its numbers of threads."""
    if not isinstance(value, dict):
        raise MachineError(
            f"{where}: {key} must be a section, [{key}], with value and source, not {value!r:.40}."
        )
    if value and field.by_threads and all(str(name).isdecimal() for name in value):
        for threads, entry in value.items():
            if int(threads) < 1 or not isinstance(entry, dict):
                raise MachineError(f"{where}: [{key}.{threads}] is not a number of threads.")
            yield f"{key}.{int(threads)}", _quantity(f"{key}.{threads}", field, entry, where)
        return
    yield key, _quantity(key, field, value, where)


def _quantity(key: str, field: Field, entry: Mapping[str, object], where: str) -> Quantity:
    for name in entry:
        if name not in _ENTRIES:
            raise MachineError(f"{where}, [{key}]: {_unknown(name, _ENTRIES)}")
    for name in ("value", "source"):
        if name not in entry:
            raise MachineError(f"{where}: [{key}] lacks {name}; every number has its source.")
    source, basis = entry["source"], entry.get("basis", "published")
    if not isinstance(source, str) or not source.strip():
        raise MachineError(f"{where}: the source of [{key}] must be text that is not empty.")
    known = next((b for b in BASES if b == basis), None)
    if known is None:
        raise MachineError(
            f"{where}: the basis of [{key}] is {basis!r}; it must be one of {', '.join(BASES)}."
        )
    try:
        number = parse(entry["value"], field.dimension)
        low, high = _range(entry.get("range"), field, number)
    except ValueError as error:
        raise MachineError(f"{where}: {key} is {error}.") from None
    return Quantity(number, field.dimension, source, known, low, high)


def _range(pair: object, field: Field, value: float) -> tuple[float | None, float | None]:
    if pair is None:
        return None, None
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"given a range {pair!r:.40} where two values are expected")
    low, high = (parse(end, field.dimension) for end in pair)
    if not low <= value <= high:
        raise ValueError("outside of its own range")
    return low, high


def _check_complete(kind: Kind, quantities: Mapping[str, Quantity], where: str) -> None:
    present = {name.partition(".")[0] for name in quantities}
    for key, field in FIELDS.items():
        if kind in field.required and key not in present:
            raise MachineError(
                f"{where} lacks [{key}] ({field.meaning}), which a {kind} machine needs; add it."
            )


def _unknown(key: str, known: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}."
    return f"there is no key {key!r:.40}; {hint}"


def to_toml(hardware: Hardware) -> str:
    """The machine as a file that `from_toml` reads; numbers to four digits."""
    lines = [f"{key} = {_quoted(getattr(hardware, key))}" for key in ("name", "title", "kind")]
    if hardware.note:
        lines.append(f"note = {_quoted(hardware.note)}")
    for name, quantity in hardware.quantities.items():
        lines += ["", f"[{name}]", f"value = {_quoted(str(quantity))}"]
        if quantity.low is not None and quantity.high is not None:
            ends = (show(end, quantity.dimension) for end in (quantity.low, quantity.high))
            lines.append(f"range = [{', '.join(map(_quoted, ends))}]")
        lines += [f"basis = {_quoted(quantity.basis)}", f"source = {_quoted(quantity.source)}"]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=False)
