"""fuse: the repeated layer is found by structure alone."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mini import mini_graph

from hotloop.ir.builder import GraphBuilder
from hotloop.ir.graph import Graph
from hotloop.ir.text import text
from hotloop.ir.types import tensor
from hotloop.passes.fuse import find_run, fuse


def names(graph: Graph) -> list[str]:
    program, _ = fuse(graph)
    return [item.kernel.name for item in program.body]  # type: ignore[union-attr]


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("fuse", text(fuse(mini_graph())[0]))


@pytest.mark.parametrize("layers", [2, 3, 7, 31])
def test_a_call_for_each_layer(layers: int) -> None:
    assert names(mini_graph(layers)) == ["embed", *["layer"] * layers, "linear", "sample"]


def test_one_layer_is_no_run() -> None:
    program, remarks = fuse(mini_graph(layers=1))
    assert [remark.kind for remark in remarks] == ["missed"]
    assert [item.kernel.name for item in program.body] == ["model", "sample"]  # type: ignore[union-attr]


def test_layers_start_where_one_value_crosses() -> None:
    """A final norm looks like the first op of one more layer, so the run could start later."""
    g = GraphBuilder("normed")
    x = g.op("embed", g.input("token", tensor("i32", 1)), g.weight("t", tensor("f32", 8, 16)))
    for i in range(4):
        h = g.op("rms_norm", x, g.weight(f"blk.{i}.n", tensor("f32", 16)), eps=1e-5)
        x = g.op("add", x, g.linear(h, g.weight(f"blk.{i}.w", tensor("f32", 16, 16)), "l"))
    x = g.op("rms_norm", x, g.weight("last", tensor("f32", 16)), eps=1e-5)
    program, _ = fuse(g.build((x,)))
    kernel = program.body[1].kernel  # type: ignore[union-attr]
    assert [op.name for op in kernel.ops] == ["rms_norm", "linear", "add"]
    assert len(kernel.results) == 1
    assert len(program.body) == 6


def test_layers_of_other_shapes_are_no_run() -> None:
    g = GraphBuilder("growing")
    x = g.op("embed", g.input("token", tensor("i32", 1)), g.weight("t", tensor("f32", 8, 8)))
    for i in range(1, 5):
        x = g.linear(x, g.weight(f"w{i}", tensor("f32", 8 * (i + 1), 8 * i)), "x")
    _, remarks = fuse(g.build((x,)))
    assert remarks[0].kind == "missed"


@given(
    head=st.lists(st.integers(100, 105), max_size=3),
    body=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    count=st.integers(2, 6),
    tail=st.lists(st.integers(200, 205), max_size=3),
)
def test_find_run_finds_a_planted_run(
    head: list[int], body: list[int], count: int, tail: list[int]
) -> None:
    """It covers at least what was planted, and what it gives is a repetition."""
    letters = np.array([*head, *body * count, *tail])
    run = find_run(letters)
    assert run is not None
    assert run.covered >= len(body) * count
    found = letters[run.start : run.start + run.covered].reshape(run.count, run.period)
    assert (found == found[0]).all()
    slack = letters[run.start : run.start + run.covered + run.slack]
    assert (slack[run.period :] == slack[: -run.period]).all()


@pytest.mark.parametrize("letters", [[], [1], [1, 2, 3]])
def test_no_run(letters: list[int]) -> None:
    assert find_run(np.array(letters, np.int64)) is None
