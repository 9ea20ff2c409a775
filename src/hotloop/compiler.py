"""The compiler: which passes run, in which order. The file to read first.

    graph ──fuse, lift──▶ calls ──loop──▶ a loop over layers ──pipeline──▶ fewer syncs, prefetch
          ──repeat, loop, unbound──▶ a loop over tokens ──memory, partition──▶ program

The rungs of the ladder are the same compiler with passes left out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hotloop.ir.graph import Graph
from hotloop.ir.program import Program
from hotloop.ir.text import text
from hotloop.ir.verify import verify
from hotloop.machine.machine import Machine
from hotloop.passes.fuse import fuse
from hotloop.passes.lift import lift
from hotloop.passes.loop import loop
from hotloop.passes.lower import lower
from hotloop.passes.memory import memory
from hotloop.passes.partition import partition
from hotloop.passes.pipeline import pipeline
from hotloop.passes.repeat import repeat
from hotloop.passes.unbound import unbound
from hotloop.util.debug import PASSES, PROGRAM, debug
from hotloop.util.errors import UsageError
from hotloop.util.remarks import Remark

#: The ladder, bottom to top: what one launch runs.
SCHEDULES = ("ops", "fused", "looped", "pipelined", "tokens")

#: Steps that are written down for the loop over tokens to be found in: a first, a next, a last.
STEPS = 3


@dataclass(frozen=True)
class Compiled:
    """A program that has passed the verifier, and what the passes had to say."""

    program: Program
    remarks: tuple[Remark, ...]


def compile_graph(
    graph: Graph,
    machine: Machine,
    schedule: str = "tokens",
    *,
    after_pass: Callable[[str, Program], None] = lambda name, program: None,
) -> Compiled:
    """Run the passes of `schedule` on `graph`.

    `after_pass` sees the program after each pass, by the pass's name. Raises `ProgramError` where
    the verifier rejects what a pass made.
    """
    if schedule not in SCHEDULES:
        raise UsageError(f"schedule {schedule!r} is not one of {', '.join(SCHEDULES)}.")
    rung = SCHEDULES.index(schedule)
    remarks: list[Remark] = []

    def done(name: str, program: Program, said: list[Remark] | None = None) -> Program:
        debug(PASSES, lambda: f"# after {name}\n{text(program)}")
        verify(program)
        remarks.extend(said or [])
        after_pass(name, program)
        return program

    if schedule == "ops":
        program = done("lower", lower(graph))
    else:
        program = done("fuse", *fuse(graph))
        program = done("lift", *lift(program))
    if rung >= SCHEDULES.index("looped"):
        program = done("loop", *loop(program))
    if rung >= SCHEDULES.index("pipelined"):
        program = done("pipeline", *pipeline(program))
    if schedule == "tokens" and graph.feedback:
        program = done("repeat", repeat(program, STEPS))
        program = done("loop tokens", *loop(program))
        program = done("unbound", *unbound(program))
    program = done("memory", *memory(program))
    program = done("partition", partition(program, machine))
    debug(PROGRAM, lambda: f"# {schedule}\n{text(program)}")
    return Compiled(program, tuple(remarks))
