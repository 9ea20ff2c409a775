"""Rules of one kernel, whatever it is called with.

Its stages can complete: each waits for earlier ones only. Its ops are typed, and what they read is
defined before. And its tiles may run at once: within a stage, a value that tiles write is read only
by later ops of the same part, on the same rows.
"""

from collections.abc import Iterable, Iterator
from math import lcm

from hotloop.ir.graph import Op
from hotloop.ir.ops import OPS, row_count
from hotloop.ir.program import ENTRY, Kernel, Part, Stage
from hotloop.ir.verify.ops import op_problems

EACH = -1
"""In place of a part's number: the ops that each thread computes for itself."""


def kernel_problems(kernel: Kernel) -> list[str]:
    """Everything wrong with `kernel`, one line each."""
    found = [*_stage_problems(kernel), *_value_problems(kernel)]
    if not found:
        found = [*_tile_problems(kernel), *_sharing_problems(kernel)]
    return found


def _where(kernel: Kernel, stage: Stage) -> str:
    return f"@{kernel.name} %{stage.name}"


# Stages ------------------------------------------------------------------------------------------


def _stage_problems(kernel: Kernel) -> Iterator[str]:
    if not kernel.stages:
        yield f"@{kernel.name}: has no stages"
    names = [stage.name for stage in kernel.stages]
    for name in _repeated(names):
        yield f"@{kernel.name}: two stages are named %{name}"
    for i, stage in enumerate(kernel.stages):
        where = _where(kernel, stage)
        if stage.name == ENTRY:
            yield f"{where}: %{ENTRY} stands for what precedes the call, and cannot name a stage"
        for name in stage.after:
            if name == stage.name:
                yield f"{where}: waits for itself, so it never starts"
            elif name in names[i + 1 :]:
                yield f"{where}: waits for %{name}, which comes later, so it never starts"
            elif name != ENTRY and name not in names:
                yield f"{where}: waits for %{name}, which nobody signals"
        if not stage.parts:
            yield f"{where}: has no parts, so there is nothing to complete"
        if not all(part.ops for part in stage.parts):
            yield f"{where}: a part has no ops"


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for name in names:
        if name in seen:
            repeated[name] = None
        seen.add(name)
    return list(repeated)


# Values ------------------------------------------------------------------------------------------


def _value_problems(kernel: Kernel) -> Iterator[str]:
    params = [param.name for param in kernel.params]
    results = [op.result.name for op in kernel.ops if op.result]
    for name in _repeated([*params, *results]):
        yield f"@{kernel.name}: %{name} is defined twice"
    types = {param.name: param.type for param in kernel.params}
    for stage in kernel.stages:
        for op in stage.ops:
            for text in op_problems(op, types, params, "a parameter"):
                yield f"{_where(kernel, stage)}: {text}"
            if op.result:
                types[op.result.name] = op.result.type
    used = {name for op in kernel.ops for name in op.reads}
    for name in params:
        if name not in used:
            yield f"@{kernel.name}: parameter %{name} is not used"
    shared = {op.result.name for _, number, _, op in _places(kernel) if op.result and number >= 0}
    for name in dict.fromkeys(kernel.results):
        if name not in shared:
            yield f"@{kernel.name}: result %{name} is not computed by a part"
    for name in _repeated(kernel.results):
        yield f"@{kernel.name}: result %{name} is named twice"


def _places(kernel: Kernel) -> Iterator[tuple[Stage, int, int, Op]]:
    """Every op with its stage, the number of its part (or `EACH`), and its index there."""
    for stage in kernel.stages:
        for k, op in enumerate(stage.each):
            yield stage, EACH, k, op
        for number, part in enumerate(stage.parts):
            for k, op in enumerate(part.ops):
                yield stage, number, k, op


# Tiles -------------------------------------------------------------------------------------------


def _tile_problems(kernel: Kernel) -> Iterator[str]:
    for stage in kernel.stages:
        for part in stage.parts:
            for text in _part_problems(kernel, part):
                yield f"{_where(kernel, stage)}: {text}"


def _part_problems(kernel: Kernel, part: Part) -> Iterator[str]:
    first, *others = part.ops
    for op in others:
        if _rows(kernel, op) != _rows(kernel, first):
            yield (
                f"one part computes {first.name} in {_rows(kernel, first)} "
                f"and {op.name} in {_rows(kernel, op)}"
            )
    grain = lcm(*(OPS[op.name].grain(dict(op.attrs)) for op in part.ops))
    if part.tile < 1 or part.tile % grain:
        yield f"a tile of {part.tile} rows is no positive multiple of {grain}, the grain of its ops"


def _rows(kernel: Kernel, op: Op) -> str:
    operands = [kernel.types[name] for name in op.operands]
    rows = row_count(op.name, operands, op.result.type if op.result else None)
    kind = OPS[op.name].rows
    single = kind == "one" or (kind == "tokens" and rows == 1)
    return "one tile" if single else f"{rows} {kind}"


# What tiles of one stage share -------------------------------------------------------------------


def _sharing_problems(kernel: Kernel) -> Iterator[str]:
    for stage in kernel.stages:
        where = _where(kernel, stage)
        for text in _stage_sharing_problems(stage):
            yield f"{where}: {text}"
    yield from _private_problems(kernel)


def _private_problems(kernel: Kernel) -> Iterator[str]:
    """A value under `each` exists on its thread and in its stage only."""
    home = {op.result.name: s for s, n, _, op in _places(kernel) if op.result and n == EACH}
    for stage, _, _, op in _places(kernel):
        for name in op.operands:
            if home.get(name, stage) is not stage:
                yield (
                    f"{_where(kernel, stage)}: {op.name} reads %{name}, which each thread has "
                    f"for itself in %{home[name].name} only"
                )


def _stage_sharing_problems(stage: Stage) -> Iterator[str]:
    for op in stage.each:
        for i in OPS[op.name].writes:
            yield f"each {op.name} would write %{op.operands[i]} once for every thread"
    written: dict[str, int] = {}  # name → the part that writes it
    for number, part in enumerate(stage.parts):
        for op in part.ops:
            for name in _writes(op):
                other = written.setdefault(name, number)
                if other != number:
                    yield f"two parts write %{name}"
    for op in stage.each:
        for name in op.operands:
            if name in written:
                yield f"each {op.name} reads %{name}, which tiles of the same stage write"
    for number, part in enumerate(stage.parts):
        for op in part.ops:
            for i, name in enumerate(op.operands):
                writer = written.get(name, number)
                if writer != number and i not in OPS[op.name].writes:
                    yield f"{op.name} reads %{name}, which another part of the stage writes"
                elif name in written and writer == number and not _aligned(op, i):
                    yield f"{op.name} needs all of %{name}, of which each tile makes a piece"


def _writes(op: Op) -> list[str]:
    names = [op.operands[i] for i in OPS[op.name].writes]
    return [*names, op.result.name] if op.result else names


def _aligned(op: Op, operand: int) -> bool:
    return operand in OPS[op.name].aligned


# A result in the memory of a parameter -----------------------------------------------------------


def in_place_problem(kernel: Kernel, param: str, result: str) -> str:
    """Why `result` may not be written over `param`; "" where it may.

    Everything that reads the parameter must come before, in an earlier stage (whose order the
    race check sees to) or in the same part, on the rows that are about to be written.
    """
    places = list(_places(kernel))
    home, part, index = next(
        (stage, number, k)
        for stage, number, k, op in places
        if op.result and op.result.name == result
    )
    order = [stage.name for stage in kernel.stages]
    for stage, number, k, op in places:
        for i, name in enumerate(op.operands):
            if name != param or order.index(stage.name) < order.index(home.name):
                continue
            if stage is not home or (number == part and k > index):
                return f"{op.name} in %{stage.name} reads %{param} after it"
            if number != part or not _aligned(op, i):
                return f"{op.name} in the same stage reads %{param} in other tiles"
    return ""
