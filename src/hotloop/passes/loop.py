"""loop: N consecutive calls of the same kernels become one loop.

Before      %x.1 = call @layer(%x.0, %w.0, %pos)   %x.2 = call @layer(%x.1, %w.1, %pos)
After       loop %i < 2 {
              carried %x = %x.0 next %y   stacked %w = %w.{0..1}   invariant %pos = %pos
              %y = call @layer(%x, %w, %pos)   yield %y -> %x.2
            }
Requires    calls of interned kernels (fuse); nothing else: layers and tokens go the same way
Why         The boundaries between the calls disappear, and with them the launches; what remains
            is one body whose next iteration is known in advance, so its weights can be fetched
            early (Koeplinger et al., 2024, arXiv 2410.23668).

A run may have a period of several items (A B A B …). Which runs there are is decided for the whole
program, so that as few calls as possible are left, those inside loops counted once; what a period
leaves over is shorter runs, or calls. Every argument must fall in one class over the whole run,
else the run ends there and a remark names the argument:

    invariant   the same name in every iteration
    stacked     a name for each iteration, all defined before the run; one that is only read may
                come again (layers that share a table)
    variant     the same with weights of several formats, where the kernel takes any of them
    carried     an outside name first, then always the same result of the iteration before
    state       invariant or stacked, and written in place

Results of all iterations but the last must not be used outside the run.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from hotloop.ir.outline import local_name
from hotloop.ir.program import ArgKind, Call, Item, Loop, LoopArg, Program
from hotloop.util.remarks import Remark


@dataclass(frozen=True)
class Run:
    """`count` repetitions of the `period` items from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


@dataclass(frozen=True)
class Slot:
    """One class of one argument position: what it is in every iteration."""

    kind: ArgKind
    outer: tuple[str, ...]
    producer: tuple[int, int] | None = None
    """For carried: (item in the body, result) that makes the next value."""


class _BrokenRunError(Exception):
    """Iteration `at` does not fit: `why` names the argument."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at
        self.why = why


def loop(program: Program) -> tuple[Program, list[Remark]]:
    """The program with every run replaced by a loop, as one launch."""
    remarks: list[Remark] = []
    runs = find_runs([item.shape for item in program.body])
    body: list[Item] = []
    at = 0
    while at < len(program.body):
        run = runs[at]
        made = _make_loop(program, run, remarks) if run else None
        body.append(made or program.body[at])
        at += (made.trip or 0) * run.period if made and run else 1
    return replace(program, body=tuple(body), launch="program"), remarks


def find_runs(shapes: Sequence[Hashable]) -> list[Run | None]:
    """For each place, the run that begins there when what follows is divided best, if one does.

    Best is what leaves fewest calls, then fewest items; then the longest run comes first, with the
    shortest period.
    """
    letters: dict[Hashable, int] = {}
    word = [letters.setdefault(shape, len(letters)) for shape in shapes]
    costs = [(0, 0)] * (len(word) + 1)  # from each place on: (calls, items)
    runs: list[Run | None] = [None] * len(word)
    for at in range(len(word) - 1, -1, -1):
        calls, items = costs[at + 1]
        costs[at], covered = (calls + 1, items + 1), 1
        for period in range(1, (len(word) - at) // 2 + 1):
            for count in range(2, _repeats(word, at, period) + 1):
                calls, items = costs[at + period * count]
                cost = calls + period, items + 1
                if (cost, -period * count) < (costs[at], -covered):
                    costs[at], covered = cost, period * count
                    runs[at] = Run(at, period, count)
    return runs


def _repeats(word: Sequence[int], at: int, period: int) -> int:
    """How often the `period` letters from `at` on come one after the other."""
    count = 1
    while word[at + count * period : at + (count + 1) * period] == word[at : at + period]:
        count += 1
    return count


def _make_loop(program: Program, run: Run, remarks: list[Remark]) -> Loop | None:
    """The loop for as much of the run as is legal; None where not even two iterations are."""
    where = ", ".join(map(_label, program.body[run.start : run.start + run.period]))
    while run.count >= 2:
        try:
            made = _build(program, run)
        except _BrokenRunError as broken:
            remarks.append(Remark("loop", "missed", where, broken.why))
            run = replace(run, count=broken.at)
        else:
            remarks.append(Remark("loop", "did", where, _describe(made)))
            return made
    return None


def _build(program: Program, run: Run) -> Loop:
    body = program.body
    iterations = [body[at : at + run.period] for at in range(run.start, run.end, run.period)]
    leaving = {*program.outputs, *(source for source, _ in program.feedback)}
    used_after = leaving.union(*(item.uses for item in body[run.end :]))
    _check_escapes(iterations, used_after)
    slots = [
        [_classify(program, iterations, j, a) for a in range(len(item.uses))]
        for j, item in enumerate(iterations[0])
    ]
    return _assemble(iterations, slots, used_after)


def _check_escapes(iterations: Sequence[Sequence[Item]], used_after: set[str]) -> None:
    for k, items in enumerate(iterations[:-1]):
        for item in items:
            for name in item.defines:
                if name in used_after:
                    raise _BrokenRunError(k + 1, f"%{name} of iteration {k} is used after the run")


def _producers(items: Sequence[Item]) -> dict[str, tuple[int, int]]:
    return {name: (j, b) for j, item in enumerate(items) for b, name in enumerate(item.defines)}


def _classify(
    program: Program, iterations: Sequence[Sequence[Item]], j: int, a: int
) -> Slot | None:
    """The class of argument `a` of item `j`; None for a value made earlier in the same iteration.

    Raises `_BrokenRunError` at the first iteration that fits none.
    """
    values = [items[j].uses[a] for items in iterations]
    made = [_producers(items) for items in iterations]
    label = f"argument %{_arg_label(iterations[0][j], a)} of {_label(iterations[0][j])}"
    inside = made[0].get(values[0])
    if inside is not None:
        if inside[0] >= j:
            raise _BrokenRunError(1, f"{label} is used before it is made")
        for k, value in enumerate(values):
            if made[k].get(value) != inside:
                raise _BrokenRunError(k, f"{label} is not made by the same item in iteration {k}")
        return None
    written = a in iterations[0][j].written
    producer = made[0].get(values[1])
    if producer is not None:
        if written:
            raise _BrokenRunError(1, f"{label} is carried and written in place")
        for k in range(1, len(values)):
            if made[k - 1].get(values[k]) != producer:
                raise _BrokenRunError(k, f"{label} is not carried: %{values[k]}")
        return Slot("carried", (values[0],), producer)
    earlier = {name for names in made for name in names}
    for k, value in enumerate(values):
        if value in earlier:
            raise _BrokenRunError(k, f"{label} is from an earlier iteration: %{value}")
    if len(set(values)) == 1:
        return Slot("state" if written else "invariant", (values[0],))
    if written and len(set(values)) < len(values):
        k = next(k for k in range(1, len(values)) if values[k] in values[:k])
        raise _BrokenRunError(k, f"{label} is neither fixed nor stacked: %{values[k]} again")
    if written:
        return Slot("state", tuple(values))
    formats = {program.types[value].format for value in values}
    return Slot("stacked" if len(formats) == 1 else "variant", tuple(values))


def _assemble(
    iterations: Sequence[Sequence[Item]],
    slots: Sequence[Sequence[Slot | None]],
    used_after: set[str],
) -> Loop:
    first, last = iterations[0], iterations[-1]
    names: dict[Slot, str] = {}
    taken: set[str] = set()
    fresh: dict[str, str] = {}  # values made in the first iteration → their names in the body

    def claim(name: str) -> str:
        unique, n = name, 1
        while unique in taken:
            n += 1
            unique = f"{name}.{n}"
        taken.add(unique)
        return unique

    for item, classes in zip(first, slots, strict=True):
        for a, slot in enumerate(classes):
            if slot is not None and slot not in names:
                same = len(slot.outer) == 1 and slot.kind != "carried"
                names[slot] = claim(slot.outer[0] if same else _arg_label(item, a))
    for item in first:
        for b, name in enumerate(item.defines):
            fresh[name] = claim(_result_label(item, b))
    _check_aliases(names)
    body = tuple(
        _rename(item, classes, names, fresh) for item, classes in zip(first, slots, strict=True)
    )
    args = tuple(_argument(slot, name, first, fresh) for slot, name in names.items())
    yields = tuple(
        (fresh[inner], outer)
        for start, end in zip(first, last, strict=True)
        for inner, outer in zip(start.defines, end.defines, strict=True)
        if outer in used_after
    )
    index = f"i{max(map(_depth, first))}".replace("i0", "i")
    return Loop(index, len(iterations), args, body, yields)


def _check_aliases(names: dict[Slot, str]) -> None:
    """A name that is written in one iteration must not be read through another argument."""
    seen: dict[str, Slot] = {}
    for slot in names:
        for k, name in enumerate(slot.outer):
            other = seen.setdefault(name, slot)
            if other is not slot and "state" in (slot.kind, other.kind):
                raise _BrokenRunError(max(k, 1), f"%{name} is written and also another argument")


def _rename(
    item: Item, classes: Sequence[Slot | None], names: dict[Slot, str], fresh: dict[str, str]
) -> Item:
    """The item with the loop's own names."""
    uses = [
        fresh[name] if slot is None else names[slot]
        for name, slot in zip(item.uses, classes, strict=True)
    ]
    defines = [fresh[name] for name in item.defines]
    if isinstance(item, Call):
        return replace(item, args=tuple(uses), results=tuple(defines))
    taken = iter([*uses, *defines])
    return item.rename(lambda _: next(taken))


def _argument(slot: Slot, name: str, first: Sequence[Item], fresh: dict[str, str]) -> LoopArg:
    if slot.producer is None:
        return LoopArg(slot.kind, name, slot.outer)
    j, b = slot.producer
    return LoopArg("carried", name, slot.outer, fresh[first[j].defines[b]], buffers=2)


def _arg_label(item: Item, a: int) -> str:
    if isinstance(item, Call):
        return item.kernel.params[a].name
    return [arg.name for arg in item.args for _ in arg.outer][a]


def _result_label(item: Item, b: int) -> str:
    if isinstance(item, Call):
        return item.kernel.results[b]
    return local_name(item.yields[b][0])


def _label(item: Item) -> str:
    return f"@{item.kernel.name}" if isinstance(item, Call) else f"loop %{item.index}"


def _depth(item: Item) -> int:
    if isinstance(item, Call):
        return 0
    return 1 + max((_depth(inner) for inner in item.body), default=0)


def _describe(made: Loop) -> str:
    kinds = [arg.kind for arg in made.args]
    counts = ", ".join(
        f"{kinds.count(kind)} {kind}"
        for kind in ("carried", "stacked", "variant", "state", "invariant")
        if kind in kinds
    )
    return f"{made.trip} iterations of {len(made.body)} items; arguments: {counts}"
