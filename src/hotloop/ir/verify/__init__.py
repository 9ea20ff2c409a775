"""Verify: reject a graph or a program that could compute something else than it says.

    ops.py        operands are defined, types fit, only what may be written is written
    kernel.py     stages can complete; tiles of a stage may run at once
    scopes.py     names, types and rights, in every body; loop arguments
    memory.py     which names may be the same memory
    lifetimes.py  nothing is read after its memory holds another value
    races.py      accesses of different stages are ordered (`hotloop.ir.order`)
    count.py      the number of tokens changes when a step is complete

Each of these needs what those above it establish, so a program is told what is wrong with its
kernels first, then with its names, then with its memory and order.
"""

from hotloop.ir.graph import Graph
from hotloop.ir.order import Order
from hotloop.ir.program import Program
from hotloop.ir.text import text
from hotloop.ir.verify.count import count_problems
from hotloop.ir.verify.kernel import kernel_problems
from hotloop.ir.verify.lifetimes import lifetime_problems
from hotloop.ir.verify.memory import memories
from hotloop.ir.verify.ops import op_problems
from hotloop.ir.verify.races import race_problems
from hotloop.ir.verify.scopes import Scope, declaration_problems, result_problems, scope_problems
from hotloop.util.errors import ProgramError


def verify(thing: Program | Graph) -> None:
    """Raise `ProgramError` with every problem, one per line, and the text of `thing`."""
    found = graph_problems(thing) if isinstance(thing, Graph) else problems(thing)
    if found:
        kind = type(thing).__name__.lower()
        lines = "".join(f"  {line}\n" for line in found)
        raise ProgramError(f"the {kind} @{thing.name} is not valid:\n{lines}\n{text(thing)}")


def problems(program: Program) -> list[str]:
    """Everything wrong with `program`, one line each; empty where it may run."""
    found = [line for kernel in program.kernels for line in kernel_problems(kernel)]
    found = found or scope_problems(program)
    if found:
        return found
    memory, order = memories(program), Order(program)
    found = lifetime_problems(program, memory) + race_problems(program, order, memory)
    return [*found, *count_problems(program, order)]


def graph_problems(graph: Graph) -> list[str]:
    """Everything wrong with `graph`, one line each."""
    scope = Scope()
    found = list(declaration_problems(graph, scope))
    states = {value.name for value in graph.states}
    for number, op in enumerate(graph.ops):
        texts = list(op_problems(op, scope.types, states, "a state"))
        if op.result and (wrong := scope.define(op.result.name, op.result.type, "result")):
            texts.append(wrong)
        found += [f"op {number}: {line}" for line in texts]
    return [*found, *result_problems(graph, scope)]
