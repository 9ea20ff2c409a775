"""Stacks of layers that differ: few loops, code that does not grow with depth, the same bits."""

import numpy as np
import pytest
import stacks

from hotloop.backends.cpu.codegen import generate
from hotloop.backends.cpu.places import place_states, place_weights, place_work
from hotloop.ir.interp import run_graph, run_program
from hotloop.ir.program import Call, Item
from hotloop.ir.verify import verify
from hotloop.lang.target import host

#: A unit of layers, and how the stack of several of them becomes calls and loops.
UNITS = {
    "dr": "8×(@layer)",  # scalars
    "ddqr": "16×(@layer)",  # formats, and scalars
    "ddrn": "4×(@layer, @layer, @layer, @layer.3)",
    "dddn": "4×(@layer, @layer, @layer, @layer.2)",
    "mn": "4×(@layer)",
    "wdd": "4×(@layer, @layer.2, @layer.2)",
}


D, N = "@layer", "@layer.2"


def division(items: tuple[Item, ...]) -> str:
    return " ".join(
        f"@{item.kernel.name}"
        if isinstance(item, Call)
        else f"{item.trip}×({', '.join(division((inner,)) for inner in item.body)})"
        for item in items
    )


@pytest.mark.parametrize("unit", UNITS)
def test_periods_become_loops(unit: str) -> None:
    program = stacks.compiled(stacks.stack(unit * 4), "looped").program
    assert division(program.body) == UNITS[unit]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("dmmmm", "@prologue 4×(@layer)"),
        ("ddmmm", "2×(@layer) 3×(@layer.2)"),
        ("dddnddndddnddnddd", f"2×({D}, {D}, {D}, {N}, {D}, {D}, {N}) 3×({D})"),
        ("dddndddndd", "2×(@layer, @layer, @layer, @layer.2) 2×(@layer)"),
        ("ndddndddnddd", "3×(@layer, @layer.2, @layer.2, @layer.2)"),
    ],
)
def test_what_a_period_leaves_over(word: str, expected: str) -> None:
    assert division(stacks.compiled(stacks.stack(word), "looped").program.body) == expected


def code_lines(word: str, rung: str) -> int:
    """Lines of LLVM's text: one for each instruction, and one for a table however long."""
    graph = stacks.stack(word)
    program = stacks.compiled(graph, rung).program
    regions = place_weights(graph), place_states(graph), place_work(program)
    return str(generate(program, *regions, host())).count("\n")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rung", ["looped", "pipelined"])
def test_code_does_not_grow_with_depth(unit: str, rung: str) -> None:
    assert code_lines(unit * 4, rung) == code_lines(unit * 40, rung)


@pytest.mark.parametrize("word", ["dddndddnd", "mnmnmn", "dmmm", "wddwddw", "rdrrd", "dqqrd"])
def test_every_rung_and_team_gives_the_same_bits(word: str) -> None:
    graph = stacks.stack(word)
    meant = run_graph(graph, stacks.values(graph))[graph.outputs[0]]
    first = stacks.run(graph, "ops", 1)
    np.testing.assert_allclose(first, meant, rtol=1e-3, atol=1e-3 * np.abs(meant).max())
    for rung in stacks.RUNGS:
        program = stacks.compiled(graph, rung).program
        verify(program)
        for order in (None, 1, 2):
            found = run_program(program, stacks.values(graph), order=order)[graph.outputs[0]]
            np.testing.assert_array_equal(found, meant)
    for rung, threads in (("fused", 2), ("looped", 3), ("pipelined", 1), ("pipelined", 2)):
        np.testing.assert_array_equal(stacks.run(graph, rung, threads), first)
