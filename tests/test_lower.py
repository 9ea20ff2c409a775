"""lower: every op its own kernel and call."""

from collections.abc import Callable

from mini import mini_graph

from hotloop.ir.program import Call
from hotloop.ir.text import text
from hotloop.passes.lower import lower


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("lower", text(lower(mini_graph(layers=1))))


def test_a_call_for_each_op() -> None:
    graph = mini_graph()
    program = lower(graph)
    assert len(program.body) == len(graph.ops)
    assert program.launch == "item"


def test_equal_ops_share_a_kernel() -> None:
    program = lower(mini_graph(layers=5))
    norms = [
        item.kernel
        for item in program.body
        if isinstance(item, Call) and item.kernel.name == "rms_norm"
    ]
    assert len(norms) == 5
    assert all(kernel is norms[0] for kernel in norms)
