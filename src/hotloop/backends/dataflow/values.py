"""What the simulated machine computes: the ops of a run at the times that its clock gives them.

A timed schedule is right if running it gives the right numbers. So every op reads its operands at
its start and writes its result at its end, in the order of those times, into the memory that the
program says: one buffer or two, the same for all iterations, NaN before anything is written. A
start that does not wait for what it reads, or an end that overwrites what another op still reads,
shows in the values.
"""

from collections.abc import Mapping

import numpy as np

from hotloop.backends.dataflow.simulate import PLAIN, Mode, simulate
from hotloop.backends.dataflow.work import Workload
from hotloop.ir.interp import Bound, bind
from hotloop.ir.ops import OPS, Array
from hotloop.ir.program import Program
from hotloop.ir.text import text
from hotloop.machine.hardware import Hardware
from hotloop.util.errors import ProgramError


def run(
    program: Program,
    values: Mapping[str, Array],
    hardware: Hardware,
    load: Workload,
    mode: Mode = PLAIN,
) -> dict[str, Array]:
    """The outputs of one run of `program`, whose loops are counted; `values` as for the NumPy
    interpreter, whose states are written.

    Raises `ProgramError` where an operand changes while an op reads it.
    """
    bound, outputs = bind(program, values)
    times = simulate(program, hardware, load, mode).executed
    held: dict[int, Array] = {}
    for _, i, begins in _events(bound, times):
        step = bound[i]
        if step.op is None:
            step.memory.fill(np.nan if step.memory.dtype.kind == "f" else _least(step.memory))
        elif begins:
            if not OPS[step.op.name].writes:
                held[i] = np.array(step.value(), copy=True)
        else:
            _finish(program, step, held.pop(i, None))
    return outputs


def _events(
    bound: list[Bound], times: tuple[tuple[float, float], ...]
) -> list[tuple[float, int, bool]]:
    """(when, which of `bound`, whether it begins), by time; in program order at one time.

    Memory is forgotten when the next op of the program begins.
    """
    events = []
    executed = iter(times)
    forgotten: list[int] = []
    for i, step in enumerate(bound):
        if step.op is None:
            forgotten.append(i)
            continue
        start, end = next(executed)
        events += [(start, k, True) for k in forgotten]
        events += [(start, i, True), (end, i, False)]
        forgotten.clear()
    return sorted(events, key=lambda event: (event[0], event[1], not event[2]))


def _finish(program: Program, step: Bound, seen: Array | None) -> None:
    """Write the op's result, which its operands must still give."""
    assert step.op is not None
    now = step.value()  # writes the state where the op does
    if seen is None and step.op.result is not None:
        step.memory[...] = now
    elif seen is not None:
        if not np.array_equal(seen, np.asarray(now), equal_nan=seen.dtype.kind == "f"):
            raise ProgramError(
                f"{step.op.name} reads an operand while it changes, in:\n{text(program)}"
            )
        step.memory[...] = seen


def _least(array: Array) -> int:
    return int(np.iinfo(array.dtype).min)
