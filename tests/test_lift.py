"""lift: kernels that differ in scalars and formats only become one."""

from collections.abc import Callable

import pytest
import stacks

from hotloop.ir.builder import GraphBuilder
from hotloop.ir.parse import parse_program
from hotloop.ir.program import Call, Program
from hotloop.ir.text import text
from hotloop.ir.types import tensor
from hotloop.passes.fuse import fuse
from hotloop.passes.lift import lift
from hotloop.passes.loop import loop
from hotloop.report.explain import loop_reports


def lifted(word: str) -> tuple[Program, list[str]]:
    program, remarks = lift(fuse(stacks.stack(word))[0])
    return program, [remark.text for remark in remarks]


def test_text(golden: Callable[[str, str], None]) -> None:
    program, _ = lifted("dqrd")
    golden("lift", text(program))
    assert parse_program(text(program)) == program


@pytest.mark.parametrize("word", ["dddd", "mmm", "ddnddn"])
def test_what_does_not_differ_stays_in_the_code(word: str) -> None:
    program, _ = fuse(stacks.stack(word))
    assert lift(program)[0] is program


@pytest.mark.parametrize(
    ("word", "remarks"),
    [
        ("dddd", []),
        ("ddnddn", ["is another kernel than @layer: op 0 is quantise, not rms_norm"]),
        ("ddmmdd", ["is another kernel than @layer: op 1 is linear, not quantise"]),
        ("ddwddd", ["is another kernel than @layer: op 2, linear, has other types"]),
        ("ndddd", ["is another kernel than @prologue: op 0 is rms_norm, not quantise"]),
    ],
)
def test_it_says_what_keeps_layers_apart(word: str, remarks: list[str]) -> None:
    assert lifted(word)[1] == remarks


def test_it_says_what_it_lifted() -> None:
    _, remarks = lifted("dqrd")
    assert remarks == [
        "takes the place of @layer.2, @layer.3: %eps is 1e-05 or 0.001; %down is in q8_0 or q4_0"
    ]


def test_each_call_has_constants_of_its_own() -> None:
    program, _ = lifted("drdr")
    assert [constant.number for constant in program.constants] == [1e-5, 1e-3, 1e-5, 1e-3]
    names = [call.args[-1] for call in program.body if isinstance(call, Call)]
    assert names == [constant.value.name for constant in program.constants]
    assert len(set(names)) == 4


def test_only_what_differs_is_lifted() -> None:
    program, _ = lifted("dqdq")
    (kernel,) = program.kernels
    assert not program.constants
    assert [param.name for param in kernel.params if param.type.format.variants] == ["down"]
    assert all(not op.scalars for op in kernel.ops)


def two_norms(first: list[float], second: list[float]) -> Program:
    """Layers of two norms and a product, each norm with an eps of its own."""
    g = GraphBuilder("norms")
    x = g.input("x", tensor("f32", 1, 16))
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        w, n = g.weight(f"w.{i}", tensor("f32", 16, 16)), g.weight(f"n.{i}", tensor("f32", 16))
        h = g.op("rms_norm", g.op("rms_norm", x, n, eps=a), n, eps=b)
        x = g.op("add", x, g.linear(h, w, "l"))
    return lift(fuse(g.build((x,)))[0])[0]


def test_attributes_that_differ_alike_share_a_scalar() -> None:
    (kernel,) = two_norms([1.0, 2.0, 1.0], [1.0, 2.0, 1.0]).kernels
    assert [op.scalars for op in kernel.ops][:2] == [(("eps", "eps"),)] * 2


def test_attributes_that_differ_on_their_own_do_not() -> None:
    program = two_norms([1.0, 2.0, 1.0], [3.0, 3.0, 4.0])
    (kernel,) = program.kernels
    assert [op.scalars for op in kernel.ops][:2] == [(("eps", "eps"),), (("eps", "eps.2"),)]
    assert [constant.number for constant in program.constants] == [1, 3, 2, 3, 1, 4]


def test_the_loop_stacks_what_was_lifted() -> None:
    program, remarks = loop(lifted("dqrd")[0])
    (made,) = program.body
    kinds = {arg.name: arg.kind for arg in made.args}  # type: ignore[union-attr]
    assert kinds["down"] == "variant"
    assert kinds["eps"] == "stacked"
    assert [r.text for r in remarks] == [
        "4 iterations of 1 items; arguments: 1 carried, 4 stacked, 1 variant"
    ]


def test_explain_says_what_each_is_in_turn() -> None:
    graph = stacks.stack("dqrdqrqq")
    program = stacks.compiled(graph, "pipelined").program
    (report,) = loop_reports(program, graph)
    assert {arg.name: arg.in_turn for arg in report.arguments if arg.in_turn} == {
        "down": "q4_0, q8_0, q4_0 ×2, q8_0, q4_0, q8_0 ×2",
        "eps": "(1e-05 ×2, 0.001) ×2, 1e-05 ×2",
    }
