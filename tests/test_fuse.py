"""fuse: the repeated layer is found by structure alone."""

from collections.abc import Callable

import pytest
import stacks
from hypothesis import given
from hypothesis import strategies as st
from mini import mini_graph

from hotloop.ir.builder import GraphBuilder
from hotloop.ir.graph import Graph
from hotloop.ir.text import text
from hotloop.ir.types import tensor
from hotloop.passes.fuse import Stack, find_stack, fuse


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


def test_layers_may_differ() -> None:
    _, remarks = fuse(stacks.stack("ddnddn"))
    assert remarks[0].text == (
        "6 layers of 2 kinds, from op 0 of 46: @layer ×2, @layer.2, @layer ×2, @layer.2"
    )


def test_layers_of_other_shapes_are_no_run() -> None:
    g = GraphBuilder("growing")
    x = g.op("embed", g.input("token", tensor("i32", 1)), g.weight("t", tensor("f32", 8, 8)))
    for i in range(1, 5):
        x = g.linear(x, g.weight(f"w{i}", tensor("f32", 8 * (i + 1), 8 * i)), "x")
    _, remarks = fuse(g.build((x,)))
    assert remarks[0].kind == "missed"


@given(
    head=st.lists(st.integers(100, 105), max_size=3, unique=True),
    body=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    count=st.integers(2, 6),
    tail=st.lists(st.integers(200, 205), max_size=3, unique=True),
)
def test_find_stack_finds_a_planted_stack(
    head: list[int], body: list[int], count: int, tail: list[int]
) -> None:
    letters = [*head, *body * count, *tail]
    planted = Stack(len(head), len(head) + len(body) * count, len(body))
    assert find_stack(letters, [1] * len(letters)) == planted


@pytest.mark.parametrize(
    ("word", "layers"),
    [
        ("eAFAFAFnh", "AF AF AF"),
        ("eAFAMAMAMnh", "AF AM AM AM"),  # dense, then mixtures of experts
        ("eAFAFBFAFAFBFnh", "AF AF BF AF AF BF"),  # every third attention is another
        ("eLLLNLLLNnh", "L L L N L L L N"),  # attention and feed-forward in parallel
        ("eBFAFAFnh", "BF AF AF"),  # the first attention is another
        ("eAFAFAMnh", "AF AF AM"),  # the last feed-forward is another
        ("eAMAFBMBFnh", "AM AF BM BF"),
    ],
)
def test_find_stack_where_layers_differ(word: str, layers: str) -> None:
    """Small letters are single ops, capitals are blocks of several."""
    stack = find_stack(word, [1 if letter.islower() else 8 for letter in word])
    assert stack is not None
    found = word[stack.start : stack.end]
    cut = [found[i : i + stack.period] for i in range(0, len(found), stack.period)]
    assert " ".join(cut) == layers


@pytest.mark.parametrize("letters", [[], [1], [1, 2, 3]])
def test_no_stack(letters: list[int]) -> None:
    assert find_stack(letters, [1] * len(letters)) is None
