"""unbound: a loop over tokens that ends when the model says so."""

from collections.abc import Callable
from dataclasses import replace

from mini import mini_graph

from hotloop.ir.program import Loop, Program
from hotloop.ir.text import text
from hotloop.passes.fuse import fuse
from hotloop.passes.loop import loop
from hotloop.passes.repeat import repeat
from hotloop.passes.unbound import unbound


def generation(steps: int = 3) -> Program:
    return loop(repeat(loop(fuse(mini_graph())[0])[0], steps))[0]


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("unbound", text(unbound(generation())[0]))


def test_how_many_steps_were_written_down_does_not_matter() -> None:
    assert unbound(generation(2))[0] == unbound(generation(5))[0]


def test_a_program_that_is_no_single_loop_stays() -> None:
    step, _ = loop(fuse(mini_graph())[0])
    same, remarks = unbound(step)
    assert same is step
    assert remarks[0].text == "the program is 4 items, not a loop"


def test_without_a_stop_condition_the_loop_stays() -> None:
    program = replace(generation(), until="")
    same, remarks = unbound(program)
    assert same is program
    assert remarks[0].text == "no output says when to stop"


def test_stacked_arguments_bound_the_loop() -> None:
    program = generation()
    (item,) = program.body
    assert isinstance(item, Loop)
    token, *rest = item.args
    stacked = replace(rest[0], kind="stacked", outer=("a", "b", "c"))
    program = replace(program, body=(replace(item, args=(token, stacked, *rest[1:])),))
    _, remarks = unbound(program)
    assert remarks[0].text.endswith("is another buffer in each iteration")
