"""loop: runs of calls become loops; what stops a run is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from mini import mini_graph

from hotloop.ir.parse import parse_program
from hotloop.ir.program import Call, Loop, Program
from hotloop.ir.text import text
from hotloop.passes.fuse import fuse
from hotloop.passes.loop import loop
from hotloop.passes.repeat import repeat


def fused(layers: int = 2) -> Program:
    return fuse(mini_graph(layers))[0]


def the_loop(program: Program) -> Loop:
    (item,) = [item for item in program.body if isinstance(item, Loop)]
    return item


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("loop", text(loop(fused())[0]))


@pytest.mark.parametrize("layers", [2, 3, 40])
def test_one_loop_whatever_the_depth(layers: int) -> None:
    looped, remarks = loop(fused(layers))
    assert len(looped.body) == 4
    assert looped.launch == "program"
    made = the_loop(looped)
    assert made.trip == layers
    kinds = {arg.name: arg.kind for arg in made.args}
    assert kinds == {
        "x": "carried",
        "norm": "stacked",
        "gate": "stacked",
        "up": "stacked",
        "down": "stacked",
    }
    assert [remark.kind for remark in remarks] == ["did"]


def test_tokens_are_looped_by_the_same_rule() -> None:
    looped, _ = loop(repeat(loop(fused())[0], 4))
    made = the_loop(looped)
    assert made.trip == 4
    kinds = {arg.name: arg.kind for arg in made.args}
    assert {name for name, kind in kinds.items() if kind == "carried"} == {"token", "pos"}
    assert {name for name, kind in kinds.items() if kind == "state"} == {"ring", "control"}
    assert set(kinds.values()) == {"carried", "state", "invariant"}


# programs written by hand

KERNELS = {
    "a": """kernel @a(%x : f32[1,8], %w : f32[8,8]) -> (%y) {
      stage %s0 after %entry { part tile 8 { %y = linear(%x, %w) : f32[1,8] } }
    }""",
    "b": """kernel @b(%x : f32[1,8]) -> (%y) {
      stage %s0 after %entry { part tile 8 { %y = add(%x, %x) : f32[1,8] } }
    }""",
    "store": """kernel @store(%x : f32[1,8], %s : f16[1,8,8], %pos : i32[1]) -> (%y) {
      stage %s0 after %entry {
        part tile 8 { store_keys(%s, %x, %pos) {head_dim=8} }
        part tile 8 { %y = add(%x, %x) : f32[1,8] }
      }
    }""",
}
DECLARATIONS = """
  input %x : f32[1,8]
  input %pos : i32[1]
  weight %w.{0..4} : f32[8,8]
  state %s.{0..4} : f16[1,8,8]
"""


def program(*lines: str) -> Program:
    body = "\n".join(lines)
    kernels = "\n".join(text for name, text in KERNELS.items() if f"@{name}(" in body)
    return parse_program(
        f"program @p launch=item {{ {DECLARATIONS} {kernels} {body} output %out }}"
    )


def shapes(result: Program) -> list[str]:
    return [
        f"call {item.kernel.name}" if isinstance(item, Call) else f"loop {item.trip}"
        for item in result.body
    ]


def missed(result: tuple[Program, list]) -> list[str]:  # type: ignore[type-arg]
    return [remark.text for remark in result[1] if remark.kind == "missed"]


def test_a_period_of_two() -> None:
    result = loop(
        program(
            "%a0 = call @a(%x, %w.0)",
            "%b0 = call @b(%a0)",
            "%a1 = call @a(%b0, %w.1)",
            "%b1 = call @b(%a1)",
            "%a2 = call @a(%b1, %w.2)",
            "%out = call @b(%a2)",
        )
    )
    assert shapes(result[0]) == ["loop 3"]
    assert len(the_loop(result[0]).body) == 2
    assert missed(result) == []


def test_state_is_stacked_and_written() -> None:
    result, _ = loop(
        program(
            "%a = call @store(%x, %s.0, %pos)",
            "%b = call @store(%a, %s.1, %pos)",
            "%out = call @store(%b, %s.2, %pos)",
        )
    )
    (state,) = [arg for arg in the_loop(result).args if arg.kind == "state"]
    assert state.outer == ("s.0", "s.1", "s.2")


def test_the_same_state_each_time_is_state_too() -> None:
    result, _ = loop(
        program("%a = call @store(%x, %s.0, %pos)", "%out = call @store(%a, %s.0, %pos)")
    )
    (state,) = [arg for arg in the_loop(result).args if arg.kind == "state"]
    assert state.outer == ("s.0",)


def test_a_value_used_after_the_run_ends_it() -> None:
    result = loop(
        program(
            "%a = call @a(%x, %w.0)",
            "%b = call @a(%a, %w.1)",
            "%c = call @a(%b, %w.2)",
            "%d = call @b(%a)",
            "%out = call @b(%c)",
        )
    )
    assert shapes(result[0])[:2] == ["call a", "loop 2"]
    assert missed(result)[0] == "%a of iteration 0 is used after the run"


def test_an_argument_that_skips_an_iteration_ends_the_run() -> None:
    result = loop(
        program(
            "%a = call @a(%x, %w.0)",
            "%b = call @a(%a, %w.1)",
            "%c = call @a(%a, %w.2)",
            "%out = call @a(%c, %w.3)",
        )
    )
    assert missed(result)[0] == "argument %x of @a is not carried: %a"
    assert "loop 4" not in shapes(result[0])


def test_a_weight_may_come_back() -> None:
    result = loop(
        program(
            "%a = call @a(%x, %w.0)",
            "%b = call @a(%a, %w.1)",
            "%c = call @a(%b, %w.0)",
            "%out = call @a(%c, %w.3)",
        )
    )
    assert missed(result) == []
    assert shapes(result[0]) == ["loop 4"]
    assert the_loop(result[0]).args[1].outer == ("w.0", "w.1", "w.0", "w.3")


def test_another_kernel_ends_the_run() -> None:
    result, _ = loop(
        program(
            "%a = call @a(%x, %w.0)",
            "%b = call @a(%a, %w.1)",
            "%c = call @b(%b)",
            "%out = call @a(%c, %w.2)",
        )
    )
    assert shapes(result) == ["loop 2", "call b", "call a"]


def test_calls_without_a_run_stay() -> None:
    one = program("%a = call @a(%x, %w.0)", "%out = call @b(%a)")
    result, remarks = loop(one)
    assert result == replace(one, launch="program")
    assert remarks == []
