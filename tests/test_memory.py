"""memory: one buffer where nobody can tell, two where somebody could."""

from collections.abc import Callable

import toys
from mini import mini_graph

from hotloop.ir.program import Loop, Program
from hotloop.ir.text import text
from hotloop.passes.fuse import fuse
from hotloop.passes.loop import loop
from hotloop.passes.memory import memory
from hotloop.passes.pipeline import pipeline


def carried(program: Program) -> dict[str, int]:
    return {
        arg.name: arg.buffers
        for item in program.body
        if isinstance(item, Loop)
        for arg in item.args
        if arg.kind == "carried"
    }


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("memory", text(memory(pipeline(loop(fuse(mini_graph())[0])[0])[0])[0]))


def test_a_layer_overwrites_its_input() -> None:
    before, _ = loop(fuse(mini_graph())[0])
    after, remarks = memory(before)
    assert carried(before) == {"x": 2}
    assert carried(after) == {"x": 1}
    assert [remark.kind for remark in remarks] == ["did"]


def test_a_stage_that_reads_all_while_it_writes_needs_two() -> None:
    program = toys.program("alternating")
    same, remarks = memory(program)
    assert same is program
    assert remarks[0].kind == "missed"
    assert remarks[0].text.startswith("needs two buffers: ")
