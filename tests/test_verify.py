"""The verifier: every valid toy passes, every broken one is told exactly what is wrong."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import toys
from adversary import adversary, meaning
from broken import Broken
from broken_programs import BROKEN, LIFETIMES, RACES
from random_programs import random_program

from hotloop.ir.graph import Graph, Op, Value
from hotloop.ir.interp import run_program
from hotloop.ir.ops import Array
from hotloop.ir.parse import parse_graph, parse_program
from hotloop.ir.program import Call, Kernel, Loop, LoopArg, Program
from hotloop.ir.text import text
from hotloop.ir.types import tensor
from hotloop.ir.verify import graph_problems, problems, verify
from hotloop.util.errors import ProgramError


@pytest.mark.parametrize("name", toys.VALID)
def test_valid_programs_are_accepted(name: str) -> None:
    assert problems(toys.program(name)) == []
    verify(toys.program(name))


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name.replace(" ", "-"))
def test_broken_programs_are_rejected(case: Broken) -> None:
    assert problems(case.program()) == list(case.problems)


def test_the_table_is_large_and_its_names_differ() -> None:
    assert len({case.name for case in BROKEN}) == len(BROKEN) >= 40


def test_the_error_lists_the_problems_and_shows_the_program() -> None:
    program = next(c for c in BROKEN if c.name == "an edge from the wrong stage").program()
    with pytest.raises(ProgramError) as error:
        verify(program)
    assert str(error.value) == (
        "the program @toy is not valid:\n"
        "  @layer %s4 reads %s while %s3 may still write it\n"
        "\n" + text(program)
    )


def test_the_ladder_stays_valid_with_the_other_number_of_buffers() -> None:
    # Two buffers are always right; `small` and the layer loop are right with one as well.
    for name in ("small", "pipelined", "tokens"):
        source = {**toys.PROGRAMS, **toys.OTHERS}[name]
        assert problems(parse_program(source.replace("buffers 1", "buffers 2"))) == []
    assert problems(parse_program(toys.TOKENS.replace("buffers 2", "buffers 1"))) == []


def test_a_stage_may_wait_for_nothing_between_launches_only() -> None:
    assert problems(toys.program("launches")) == []
    assert problems(replace(toys.program("launches"), launch="program"))


def test_a_barrier_also_covers_stages_that_nobody_names() -> None:
    source = toys.PROMPT.replace("stage %s2 after %s0", "stage %s2 barrier")
    assert problems(parse_program(source)) == []


def test_a_call_is_complete_with_all_its_exits() -> None:
    kernel = toys.program("prompt").kernels[0]
    assert kernel.exits == ("s1", "s2")
    after_barrier = toys.LOOPED.replace("stage %s20 barrier", "stage %s20 after %s18")
    layer = parse_program(after_barrier).kernels[1]
    assert layer.exits == ("s19", "s20")


# What text cannot say ----------------------------------------------------------------------------


def test_two_kernels_of_one_name() -> None:
    program = toys.program("pipelined")
    embed, head = program.kernels[0], program.kernels[2]
    twin = Kernel.of(embed.name, head.params, head.results, head.stages)
    body = tuple(
        replace(item, kernel=twin) if isinstance(item, Call) and item.kernel is head else item
        for item in program.body
    )
    assert problems(replace(program, body=body)) == ["two kernels are named @embed"]


def test_a_name_that_text_cannot_hold() -> None:
    program = toys.program("small")
    renamed = replace(program, inputs=(*program.inputs, Value("a {0..3}", tensor("f32", 1))))
    assert problems(renamed) == ["input %a {0..3} is not a name that IR text can hold"]


def test_arguments_without_a_name_outside() -> None:
    program = toys.program("small")
    (loop,) = program.body
    assert isinstance(loop, Loop)
    args = (*loop.args, LoopArg("carried", "z", ()), LoopArg("state", "s", ()))
    assert problems(replace(program, body=(replace(loop, args=args),))) == [
        "loop %i: carried %z: 0 names outside, expected 1",
        "loop %i: state %s: 0 names outside, expected 1",
        "loop %i: carried %z: next % is not the result of a call in the body",
    ]


def test_a_yield_to_a_name_that_text_cannot_hold() -> None:
    program = toys.program("small")
    (loop,) = program.body
    assert isinstance(loop, Loop)
    broken = replace(loop, yields=(*loop.yields, ("y", "")))
    assert problems(replace(program, body=(broken,))) == ["loop %i: yield %y: is yielded twice"]


# Graphs ------------------------------------------------------------------------------------------


def test_the_toy_graph_is_valid() -> None:
    assert graph_problems(toys.graph()) == []
    verify(toys.graph())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "  %xq = quantise(%xn) : q8[1,64]\n",
            "",
            ["op 44: linear reads %xq, which nothing defines before it"],
        ),
        (
            "%logits = linear(%xq, %token_embd.weight) : f32[1,40]",
            "%logits = linear(%xq, %token_embd.weight) : f32[1,41]",
            ["op 45: linear gives f32[1,40], but %logits is declared f32[1,41]"],
        ),
        (
            "%next_pos = advance(%pos)",
            "%next = advance(%pos)",
            [
                "op 48: %next is already defined",
                "output %next_pos: is not defined",
                "feedback %next_pos -> %pos: %next_pos is not computed",
            ],
        ),
        (
            "state %ring",
            "weight %ring",
            ["op 47: emit writes %ring in place, which is not a state"],
        ),
        ("input %pos", "input %pos : i32[1]\n  input %pos", ["input %pos is already defined"]),
        ("until %done", "until %next_token", ["until %next_token: is not an output"]),
        (
            "feedback %next -> %token",
            "feedback %token -> %token",
            ["feedback %token -> %token: %token is not computed"],
        ),
    ],
)
def test_broken_graphs(old: str, new: str, expected: list[str]) -> None:
    assert old in toys.GRAPH
    graph = parse_graph(toys.GRAPH.replace(old, new, 1))
    found = graph_problems(graph)
    assert found[: len(expected)] == expected
    with pytest.raises(ProgramError, match="the graph @toy is not valid"):
        verify(graph)


def test_an_op_that_writes_and_gives_nothing() -> None:
    graph = Graph(
        "g",
        (
            Value("x", tensor("f32", 1, 32)),
            Value("pos", tensor("i32", 1)),
            Value("pages", tensor("i32", 1, 1)),
        ),
        (),
        (Value("cache", tensor("f16", 1, 1, 16, 32)),),
        (Op("store_keys", ("cache", "x", "pos", "pages"), None, (("head_dim", 32),)),),
        (),
    )
    assert graph_problems(graph) == []


# What the verifier promises ----------------------------------------------------------------------


def _same(found: dict[str, Array], expected: dict[str, Array]) -> bool:
    return all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def _everything(
    run: Callable[[Program, dict[str, Array]], dict[str, Array]], program: Program
) -> dict[str, Array]:
    """What `run` gives on the toys' values, and the states as it leaves them."""
    arrays = toys.values(program)
    outputs = run(program, arrays)
    states = {f"{value.name} (state)": arrays[value.name] for value in program.states}
    return {**states, **outputs}


@pytest.mark.parametrize("name", toys.VALID)
def test_accepted_toys_give_the_same_on_the_worst_team(name: str) -> None:
    program = toys.program(name)
    expected = _everything(meaning, program)
    for seed in range(4):
        assert _same(_everything(partial(adversary, seed=seed), program), expected)
        assert _same(_everything(partial(run_program, steps=3, order=seed), program), expected)


def test_accepted_random_programs_give_the_same_on_the_worst_team() -> None:
    accepted = 0
    for seed in range(500):
        program = random_program(seed)
        if problems(program):
            continue
        accepted += 1
        expected = _everything(meaning, program)
        assert _same(_everything(run_program, program), expected), seed
        for team in range(3):
            found = _everything(partial(adversary, seed=team), program)
            assert _same(found, expected), (seed, team)
    assert accepted > 100


@pytest.mark.parametrize("case", [*LIFETIMES, *RACES], ids=lambda case: case.name.replace(" ", "-"))
def test_what_is_rejected_for_its_memory_does_go_wrong(case: Broken) -> None:
    program = case.program()
    expected = _everything(meaning, program)
    runs = [_everything(partial(adversary, seed=seed), program) for seed in range(12)]
    assert not all(_same(run, expected) for run in runs)


def test_many_layers_cost_nothing_when_looped() -> None:
    # The size of the question does not depend on the trip count.
    source = toys.SMALL.replace("w.{0..3}", "w.{0..9999}").replace("%i < 4", "%i < 10000")
    assert problems(parse_program(source)) == []
