"""The interpreter: every level computes the same, and wrong memory gives wrong numbers."""

import numpy as np
import pytest
import toys

from hotloop.ir.interp import run_graph, run_program
from hotloop.ir.ops import Array
from hotloop.ir.parse import parse_graph, parse_program
from hotloop.ir.types import FORMATS
from hotloop.util.errors import UsageError

STATES = ("blk.0.keys", "blk.1.keys", "blk.0.values", "blk.1.values", "ring", "control")


@pytest.fixture(scope="module")
def reference() -> tuple[list[int], dict[str, Array]]:
    """The tokens of a whole generation by the graph, and the state it leaves."""
    graph = toys.graph()
    arrays = toys.values(graph)
    return toys.generate(lambda values: run_graph(graph, values), graph, arrays), arrays


def test_the_reference_generates_varied_tokens_until_the_last_position(
    reference: tuple[list[int], dict[str, Array]],
) -> None:
    tokens, arrays = reference
    assert len(tokens) == 15
    assert len(set(tokens)) > 5
    assert arrays["ring"][0].tolist() == [3, *tokens]
    assert arrays["control"]["finish"][0] == 1


@pytest.mark.parametrize("rung", ["ops", *toys.PROGRAMS])
@pytest.mark.parametrize("order", [None, 0, 1])
def test_every_rung_computes_what_the_graph_says(
    rung: str, order: int | None, reference: tuple[list[int], dict[str, Array]]
) -> None:
    tokens, expected = reference
    program = toys.program(rung)
    arrays = toys.values(program)
    if rung == "tokens":
        run_program(program, arrays, order=order)
    else:
        found = toys.generate(lambda v: run_program(program, v, order=order), program, arrays)
        assert found == tokens
    for name in STATES:
        np.testing.assert_array_equal(arrays[name], expected[name])


def test_logits_are_those_of_the_graph_bit_by_bit() -> None:
    graph = toys.graph()
    expected = run_graph(graph, toys.values(graph))["logits"]
    for rung in ("ops", *toys.PROGRAMS):
        program = toys.program(rung)
        found = run_program(program, toys.values(program), steps=1)["logits"]
        np.testing.assert_array_equal(found, expected)


def test_steps_cap_an_open_loop() -> None:
    program = toys.program("tokens")
    arrays = toys.values(program)
    run_program(program, arrays, steps=4)
    assert arrays["control"]["published"][0] == 5
    assert (arrays["ring"][0, 5:] == 0).all()


def test_an_open_loop_stops_at_a_stop_token(
    reference: tuple[list[int], dict[str, Array]],
) -> None:
    tokens, _ = reference
    stop = next(k for k in range(3, 15) if tokens.index(tokens[k]) == k)
    program = toys.program("tokens")
    arrays = toys.values(program)
    arrays["control"]["stop_ids"][0, 0] = tokens[stop]
    arrays["control"]["stop_count"] = 1
    outputs = run_program(program, arrays)
    assert outputs["next"][0] == tokens[stop]
    assert outputs["next_pos"][0] == stop + 1
    assert arrays["control"]["finish"][0] == 2


@pytest.mark.parametrize("name", toys.OTHERS)
def test_loops_compute_what_their_unrolled_form_does(name: str) -> None:
    program = toys.program(name)
    arrays = toys.values(program)
    found = run_program(program, arrays)
    expected = _UNROLLED[name](arrays)
    for output, value in zip(program.outputs, expected, strict=True):
        np.testing.assert_allclose(found[output], value, rtol=1e-5, atol=1e-6)


def _norm(x: Array, w: Array, eps: float = 1e-5) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * w)


def _small(v: dict[str, Array]) -> list[Array]:
    x = v["x"]
    for i in range(4):
        x = x + _norm(x, v[f"w.{i}"])
    return [x]


def _alternating(v: dict[str, Array]) -> list[Array]:
    return [v["x"] @ v["w.0"].T @ v["w.1"].T @ v["w.2"].T]


def _period(v: dict[str, Array]) -> list[Array]:
    x = v["x"]
    for j in range(3):
        for i in range(2):
            x = x + x @ v[f"a.{i}"].T
        x = _norm(x, v[f"b.{j}"])
    return [x]


def _varied(v: dict[str, Array]) -> list[Array]:
    x = v["x"]
    for i, eps in enumerate((0.5, 0.5, 2.0, 2.0)):
        x = x + _norm(x, v[f"norm.{i}"], eps) @ v[f"w.{i}"].T
    return [x]


def _prompt(v: dict[str, Array]) -> list[Array]:
    n = _norm(v["x"], v["norm"])
    scale = np.abs(n).max(axis=-1, keepdims=True) / np.float32(127)
    q = np.rint(n * (np.float32(1) / scale)) * scale
    return [q @ v["a"].T, q @ v["b"].T]


def _launches(v: dict[str, Array]) -> list[Array]:
    a = _norm(v["x"], v["w"])
    return [_norm(a, v["w"]), _norm(a, v["w"], 1.0)]


_UNROLLED = {
    "varied": _varied,
    "small": _small,
    "alternating": _alternating,
    "period": _period,
    "prompt": _prompt,
    "launches": _launches,
}


# Memory ------------------------------------------------------------------------------------------


def test_one_buffer_where_two_are_needed_gives_wrong_numbers() -> None:
    # The second call reads %x, which the first has overwritten where there is one buffer.
    source = toys.SMALL.replace("yield %y", "%z = call @k(%x, %w)\n    yield %z")
    shared, alternating = (
        parse_program(source.replace("buffers 1", f"buffers {count}")) for count in (1, 2)
    )
    arrays = toys.values(shared)
    right = run_program(toys.program("small"), arrays)["out"]
    np.testing.assert_array_equal(run_program(alternating, arrays)["out"], right)
    assert not np.array_equal(run_program(shared, arrays)["out"], right)


def test_the_initial_value_is_overwritten() -> None:
    source = toys.ALTERNATING.replace("output %out", "output %out, %x")
    program = parse_program(source)
    arrays = toys.values(program)
    before = arrays["x"].copy()
    outputs = run_program(program, arrays)
    assert not np.array_equal(outputs["x"], before)
    np.testing.assert_array_equal(arrays["x"], before)  # the caller's input is not


def test_memory_that_nothing_wrote_is_nan() -> None:
    source = toys.SMALL.replace("after %s0", "after %entry")
    runs = [
        run_program(parse_program(source), toys.values(parse_program(source)), order=seed)["out"]
        for seed in range(40)
    ]
    assert any(np.isnan(run).all() for run in runs)
    assert any(np.isfinite(run).all() for run in runs)


def test_states_are_written_in_place_and_rounded_to_their_format() -> None:
    program = toys.program("pipelined")
    arrays = toys.values(program)
    keys = arrays["blk.0.keys"]
    run_program(program, arrays)
    assert arrays["blk.0.keys"] is keys
    assert keys.dtype == np.float16
    assert keys[0, 0].any()
    assert not keys[0, 1:].any()


# Traces ------------------------------------------------------------------------------------------


def test_the_trace_names_iteration_kernel_and_value() -> None:
    seen: list[str] = []
    program = toys.program("tokens")
    run_program(program, toys.values(program), steps=2, trace=lambda name, value: seen.append(name))
    assert seen[:2] == ["t=0 @embed %x", "t=0 i=0 @layer %xn"]
    assert "t=1 i=1 @layer %keys" in seen
    assert seen[-1] == "t=1 @sample %next_pos"
    assert len(seen) == len(set(seen))


def test_the_trace_numbers_calls_of_one_kernel() -> None:
    seen: dict[str, Array] = {}
    program = toys.program("unrolled")
    run_program(
        program,
        toys.values(program),
        trace=lambda name, value: seen.update({name: value.copy()}),
    )
    assert "@layer[0] %y" in seen
    assert "@layer[1] %y" in seen
    looped: dict[str, Array] = {}
    program = toys.program("pipelined")
    run_program(
        program,
        toys.values(program),
        trace=lambda name, value: looped.update({name: value.copy()}),
    )
    for i in range(2):
        np.testing.assert_array_equal(looped[f"i={i} @layer %y"], seen[f"@layer[{i}] %y"])


def test_a_graph_traces_values_and_written_states() -> None:
    seen: list[str] = []
    graph = toys.graph()
    run_graph(graph, toys.values(graph), trace=lambda name, value: seen.append(name))
    assert len(seen) == len(graph.ops)
    assert "%blk.0.keys" in seen
    assert seen[-1] == "%next_pos"


# Values ------------------------------------------------------------------------------------------


def test_a_value_that_is_missing() -> None:
    program = toys.program("small")
    arrays = toys.values(program)
    del arrays["w.2"]
    with pytest.raises(UsageError, match=r"There is no value for %w\.2 : f32\[64\]\."):
        run_program(program, arrays)


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 32), np.float32), np.zeros((1, 64)), np.zeros(64, np.float32)]
)
def test_a_value_that_does_not_fit(wrong: Array) -> None:
    program = toys.program("small")
    with pytest.raises(UsageError, match=r"The value for %x : f32\[1,64\] is .*; expected float32"):
        run_program(program, {**toys.values(program), "x": wrong})


def test_a_graph_of_nothing() -> None:
    graph = parse_graph("graph @nothing { input %x : f32[0,32] output %x }")
    assert run_graph(graph, {"x": np.zeros((0, 32), np.float32)})["x"].shape == (0, 32)


def test_every_format_has_an_array_type() -> None:
    for name in FORMATS:
        graph = parse_graph(f"graph @g {{ weight %w : {name}[32] output %w }}")
        run_graph(graph, {"w": np.zeros(32, np.float32)})
