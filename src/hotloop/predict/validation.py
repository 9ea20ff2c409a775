"""The table of published, simulated and error, and how far each depends on what is not known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from hotloop.machine.load import find
from hotloop.predict.published import ROWS, Bench, Models, Row

Progress = Callable[[int, int | None, str], None]

#: The machine whose uncertain numbers are varied for all of its kind.
_OF_KIND = {"dataflow": "sn40l-x16", "gpu": "dgx-h100"}
#: An input that changes a result by less than this is not listed.
LEAST = 0.01


@dataclass(frozen=True)
class Sensitivity:
    """A result, relative to that of the description, at both ends of an input's range."""

    kind: str
    input: str
    at_low: float
    at_high: float

    @property
    def span(self) -> float:
        return max(abs(self.at_low), abs(self.at_high))

    def __str__(self) -> str:
        return f"{self.input} {self.at_low:+.0%} {self.at_high:+.0%}"


@dataclass(frozen=True)
class Result:
    row: Row
    simulated: float
    sensitivities: tuple[Sensitivity, ...]

    @property
    def error(self) -> float:
        return self.row.error(self.simulated)

    def to_json(self) -> dict[str, object]:
        row = self.row
        return {
            "name": row.name,
            "published": row.published,
            "low": row.low,
            "high": row.high,
            "unit": row.unit,
            "role": row.role,
            "source": row.trust,
            "simulated": self.simulated,
            "error": self.error,
            "remark": row.remark,
            "sensitivities": [asdict(each) for each in self.sensitivities],
        }


def validate(
    rows: Sequence[Row] = ROWS,
    *,
    sensitivity: bool = True,
    progress: Progress = lambda done, total, what: None,
) -> list[Result]:
    """Every row simulated; with `sensitivity`, again at both ends of each uncertain input."""
    models = Models()
    plain = Bench(models=models)
    changed = {
        (kind, name): [Bench({kind: {name: end}}, models) for end in (low, high)]
        for kind, name, low, high in _uncertain()
    }
    results = []
    for i, row in enumerate(rows):
        progress(i, len(rows), row.name)
        value = row.compute(plain)
        found = []
        for (kind, name), ends in changed.items() if sensitivity else ():
            if kind in row.kinds:
                low, high = (row.compute(bench) / value - 1 for bench in ends)
                found.append(Sensitivity(kind, name, low, high))
        listed = sorted((s for s in found if s.span >= LEAST), key=lambda s: -s.span)
        results.append(Result(row, value, tuple(listed)))
    return results


def _uncertain() -> Iterator[tuple[str, str, float, float]]:
    for kind, machine in _OF_KIND.items():
        for name, quantity in find(machine).quantities.items():
            if quantity.low is not None and quantity.high is not None:
                yield kind, name, quantity.low, quantity.high


COLUMNS = ("what", "published", "simulated", "unit", "error", "", "most sensitive to")


def cells(result: Result, most: int = 3) -> tuple[str, ...]:
    """A row of the table as text; `most` sensitivities."""
    row = result.row
    error = "" if row.role in ("exact", "context") else f"{result.error:+.0%}"
    if row.role == "exact":
        error = "ok" if result.error == 0 else "WRONG"
    return (
        row.name,
        row.published,
        f"{result.simulated:.4g}",
        row.unit,
        "0%" if error in ("+0%", "-0%") else error,
        row.role,
        ", ".join(map(str, result.sensitivities[:most])),
    )


def markdown(results: Sequence[Result]) -> str:
    """The table, and under it where each number was read and what it would need to be true."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|--:|--:|---|--:|---|---|"]
    notes = []
    for n, result in enumerate(results, 1):
        name, *rest = cells(result)
        lines.append("| " + " | ".join([f"{n}. {name}", *rest]) + " |")
        remark = f" {result.row.remark}" if result.row.remark else ""
        notes.append(f"{n}. {result.row.trust}.{remark}")
    return "\n".join([*lines, "", *notes, ""])
