"""repeat: a step fed by the step before."""

from collections.abc import Callable

from mini import mini_graph

from hotloop.ir.text import text
from hotloop.passes.fuse import fuse
from hotloop.passes.loop import loop
from hotloop.passes.repeat import repeat


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("repeat", text(repeat(loop(fuse(mini_graph())[0])[0], 2)))


def test_outputs_are_those_of_the_last_step() -> None:
    step, _ = fuse(mini_graph())
    twice = repeat(step, 2)
    assert twice.outputs == step.outputs
    assert len(twice.body) == 2 * len(step.body)
    first, second = twice.body[0], twice.body[len(step.body)]
    assert first.uses[0] == "token"
    assert second.uses[0] == "next.0"


def test_once_is_the_step_itself() -> None:
    step, _ = fuse(mini_graph())
    assert repeat(step, 1) == step
