"""Mixtures of experts: the router against a plain sort, products against those of one expert."""

import numpy as np
import pytest
import stacks
from jit import TARGETS, buffer_of, compute, from_rows, rows_of
from test_linear import runs_here
from weights import BLOCKS, PLAIN, activation, meaning, real_weight

from hotloop.ir.interp import run_graph
from hotloop.ir.ops import OPS, OpTypeError, infer
from hotloop.ir.types import TensorType, tensor
from hotloop.kernels.pack import matrix, pack, packed_bytes
from hotloop.kernels.tile import OpSpec
from hotloop.lang.target import AMX, AVX2
from hotloop.report.counts import traffic

ROUTE = {"group_best": 1, "groups": 1, "scoring": "softmax", "top": 1, "top_groups": 1}
WEIGH = {"normalise": 0, "scale": 1.0, "scoring": "softmax"}

NAN, INFINITY = np.float32(np.nan), np.float32(np.inf)


def spec_of(name: str, *operands: TensorType, **attrs: object) -> OpSpec:
    return OpSpec(name, operands, infer(name, operands, attrs), tuple(sorted(attrs.items())))  # type: ignore[arg-type]


def route(logits: np.ndarray, *bias: np.ndarray, **attrs: object) -> np.ndarray:
    """The ids by the kernel, which must be those of the op's meaning."""
    attrs = ROUTE | attrs
    tokens, experts = logits.shape
    operands = [tensor("f32", tokens, experts), *(tensor("f32", experts) for _ in bias)]
    spec = spec_of("route", *operands, **attrs)
    buffer = compute(spec, [rows_of(logits), *map(buffer_of, bias)], tokens)
    assert spec.result is not None
    ids = buffer.view(np.int32).reshape(tokens, -1)[:, : spec.result.shape[1]]
    np.testing.assert_array_equal(ids, OPS["route"].meaning(logits, *bias, **attrs))
    return ids


def some_logits(tokens: int, experts: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(0, 3, (tokens, experts)).astype(np.float32)


@pytest.mark.parametrize(
    ("experts", "top"), [(1, 1), (4, 4), (7, 2), (8, 8), (9, 3), (60, 4), (128, 8), (257, 20)]
)
def test_the_greatest_logits_are_chosen_in_order(experts: int, top: int) -> None:
    logits = some_logits(3, experts, experts)
    ids = route(logits, top=top)
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1)[:, :top])


def test_ties_go_to_the_lower_id() -> None:
    logits = np.array([[1, 2, 2, 1, 2, 0, 0, 0, 2, 3, 2]], np.float32)
    assert route(logits, top=6).tolist() == [[9, 1, 2, 4, 8, 10]]
    assert route(np.zeros((1, 40), np.float32), top=12).tolist() == [list(range(12))]


def test_nan_and_infinity_choose_experts_all_the_same() -> None:
    logits = np.array([[NAN, -INFINITY, NAN, INFINITY, 0], [NAN] * 5], np.float32)
    assert route(logits, top=5).tolist() == [[3, 4, 0, 1, 2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_bias_changes_the_choice_but_no_weight(scoring: str) -> None:
    logits = some_logits(5, 16)
    bias = np.linspace(1, -1, 16).astype(np.float32)
    if scoring == "softmax":
        with pytest.raises(OpTypeError, match="softmax takes neither a bias"):
            route(logits, bias)
        return
    ids = route(logits, bias, top=4, scoring=scoring)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64))) + bias
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1)[:, :4])
    assert (ids != route(logits, top=4, scoring=scoring)).any()


@pytest.mark.parametrize("group_best", [1, 2])
def test_only_the_best_groups_are_eligible(group_best: int) -> None:
    logits = some_logits(6, 24)
    bias = np.random.default_rng(1).normal(0, 0.1, 24).astype(np.float32)
    options = {"scoring": "sigmoid", "groups": 6, "top_groups": 2, "group_best": group_best}
    ids = route(logits, bias, top=5, **options)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64))) + bias
    for token in range(6):
        groups = np.sort(scores[token].reshape(6, 4))[:, -group_best:].sum(axis=1)
        best = set(np.argsort(-groups)[:2])
        order = [i for i in np.argsort(-scores[token]) if i // 4 in best]
        assert ids[token].tolist() == order[:5]


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"groups": 5}, "route: 16 experts are not 5 equal groups"),
        ({"groups": 4, "top_groups": 5}, "route: 5 of 4 groups cannot be chosen"),
        ({"groups": 4, "top_groups": 1, "top": 5}, "route: 5 of 4 experts cannot be chosen"),
        ({"top": 0}, "route: 0 of 16 experts cannot be chosen"),
        ({"group_best": 3}, "route: group_best must be 1 or 2, not 3"),
        ({"scoring": "tanh"}, "route: scoring is one of ('softmax', 'sigmoid'), not tanh"),
    ],
)
def test_what_route_refuses(attrs: dict[str, object], text: str) -> None:
    with pytest.raises(OpTypeError) as error:
        infer("route", [tensor("f32", 1, 16)], ROUTE | attrs)  # type: ignore[arg-type]
    assert str(error.value) == text


@pytest.mark.parametrize("normalise", [0, 1])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("experts", "slots"), [(1, 1), (9, 3), (64, 8), (130, 17)])
def test_weights(experts: int, slots: int, scoring: str, normalise: int) -> None:
    tokens = 3
    logits = some_logits(tokens, experts, slots)
    ids = np.argsort(-logits, axis=1)[:, :slots].astype(np.int32)
    types = tensor("f32", tokens, experts), tensor("i32", tokens, slots)
    attrs = {"normalise": normalise, "scale": 2.5, "scoring": scoring}
    spec = spec_of("route_weights", *types, **attrs)
    found = compute(spec, [rows_of(logits), rows_of(ids.view(np.float32))], tokens)
    exact = logits.astype(np.float64)
    scores = 1 / (1 + np.exp(-exact)) if scoring == "sigmoid" else np.exp(exact)
    if scoring == "softmax":
        scores /= scores.sum(axis=1, keepdims=True)
    expected = np.take_along_axis(scores, ids, axis=1)
    if normalise:
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(from_rows(found, tokens, slots), expected * 2.5, rtol=2e-6)
    meant = OPS["route_weights"].meaning(logits, ids, **attrs)
    np.testing.assert_allclose(meant, expected * 2.5, rtol=2e-6)


PAIRS = [("f32", name) for name in PLAIN + BLOCKS] + [("q8", name) for name in BLOCKS]
PAIRS += [("q8", "q5_0"), ("q8", "mxfp4"), ("f32", "mxfp4")]


def packed_experts(data: np.ndarray, type: TensorType) -> np.ndarray:
    flat = matrix(type)
    out = buffer_of(np.zeros(packed_bytes(flat), np.uint8))
    pack(data, flat, out)
    return out


def some_activation(x_format: str, tokens: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    quants = random.integers(-127, 128, (tokens, columns)).astype(np.int8)
    scales = random.uniform(0.001, 0.02, (tokens, columns // 32)).astype(np.float32)
    return activation(x_format, quants, scales)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("x_format", "format_name"), PAIRS)
def test_products(x_format: str, format_name: str, biased: bool, tokens: int) -> None:
    """Slots of 40 rows (no tile of 32 fits) against float64; repeated ids are allowed."""
    experts, rows, columns, slots = 5, 40, 64, 3
    weight = tensor(format_name, experts, rows, columns)
    data = real_weight(weight)
    w = meaning(data, weight)
    ids = np.array([[4, 0, 4], [1, 2, 3], [3, 3, 0]], np.int32)[:tokens]
    bias = np.random.default_rng(5).normal(0, 1, (experts, rows)).astype(np.float32)
    biases = [bias] if biased else []
    given = [packed_experts(data, weight), rows_of(ids.view(np.float32))]
    types = weight, tensor("i32", tokens, slots)
    bias_types = [tensor("f32", experts, rows)] * biased

    x, values = some_activation(x_format, tokens, columns)
    spec = spec_of("expert_linear", tensor(x_format, tokens, columns), *types, *bias_types)
    buffer = compute(spec, [x, *given, *map(buffer_of, biases)], tokens, grain=8)
    found = from_rows(buffer, tokens, slots * rows)
    meant = OPS["expert_linear"].meaning(values, w.astype(np.float32), ids, *biases)
    expected = np.einsum("tsnk,tk->tsn", w[ids], values) + (bias[ids] if biased else 0)
    tolerance = 64 * 2.0**-24 * np.einsum("tsnk,tk->tsn", np.abs(w[ids]) + 5, np.abs(values))
    assert (np.abs(found - expected.reshape(tokens, -1)) <= tolerance.reshape(tokens, -1)).all()
    np.testing.assert_allclose(meant, found, rtol=1e-3, atol=1e-3)

    parts, values = some_activation(x_format, tokens, slots * columns)
    mixing = np.random.default_rng(6).uniform(0, 1, (tokens, slots)).astype(np.float32)
    types = tensor(x_format, tokens, slots * columns), *types, tensor("f32", tokens, slots)
    spec = spec_of("expert_mix", *types, *bias_types)
    operands = [parts, *given, rows_of(mixing), *map(buffer_of, biases)]
    found = from_rows(compute(spec, operands, tokens, grain=8), tokens, rows)
    meant = OPS["expert_mix"].meaning(values, w.astype(np.float32), ids, mixing, *biases)
    split = values.reshape(tokens, slots, columns)
    each = np.einsum("tsnk,tsk->tsn", w[ids], split) + (bias[ids] if biased else 0)
    expected = np.einsum("tsn,ts->tn", each, mixing)
    tolerance = 64 * 2.0**-24 * np.einsum("tsnk,tsk->tn", np.abs(w[ids]) + 5, np.abs(split))
    assert (np.abs(found - expected) <= tolerance + 1e-6).all()
    np.testing.assert_allclose(meant, found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("x_format", "format_name"), [("q8", "q4_0"), ("q8", "q4_k"), ("f32", "f16")]
)
def test_tokens_of_one_expert_give_the_bits_that_each_gives_alone(
    x_format: str, format_name: str
) -> None:
    """An expert with more tokens than tiles take, one with fewer than a block, one with none."""
    tokens, count, experts, rows, columns, slots = 40, 37, 4, 40, 256, 2
    weight = tensor(format_name, experts, rows, columns)
    given = packed_experts(real_weight(weight), weight)
    ids = np.zeros((tokens, slots), np.int32)
    ids[:, 1] = 3
    ids[[2, 9, 11, 36]] = [1, 0], [3, 0], [1, 3], [3, 1]
    bias = buffer_of(np.random.default_rng(5).normal(0, 1, (experts, rows)).astype(np.float32))
    mixing = np.random.default_rng(6).uniform(0, 1, (tokens, slots)).astype(np.float32)
    targets = (*TARGETS, *filter(runs_here, (AVX2, AMX)))

    for name, width in (("expert_linear", columns), ("expert_mix", slots * columns)):
        x, _ = some_activation(x_format, tokens, width)

        def outputs(at: slice, name: str = name, width: int = width, x=x) -> np.ndarray:
            many = tokens if at.stop - at.start > 1 else 1
            types = [tensor(x_format, many, width), weight, tensor("i32", many, slots)]
            start = at.start * (x.size // tokens)
            operands = [x[start:], given, rows_of(ids[at].view(np.float32))]
            if name == "expert_mix":
                types.append(tensor("f32", many, slots))
                operands.append(rows_of(mixing[at]))
            spec = spec_of(name, *types, tensor("f32", experts, rows))
            assert spec.result is not None
            n = at.stop - at.start
            found = compute(spec, [*operands, bias], n, grain=8, targets=targets)
            return from_rows(found, many, spec.result.shape[1])[:n]

        together = outputs(slice(0, count))
        for token in (0, 2, 9, 11, 20, 36):
            np.testing.assert_array_equal(outputs(slice(token, token + 1))[0], together[token])


def test_what_products_refuse() -> None:
    x, ids = tensor("f32", 1, 32), tensor("i32", 1, 2)
    for operands, text in [
        ((x, tensor("f32", 4, 12, 32), ids), "experts have 12 rows, which 8 does not divide"),
        ((x, tensor("f32", 4, 8, 64), ids), "32 columns for an expert, the weight 64"),
        ((x, tensor("f32", 4, 32), ids), r"the weight must be \[E,N,K\], not f32\[4,32\]"),
        ((x, tensor("f32", 4, 8, 32), tensor("i32", 2, 2)), r"must be i32\[1,S\]"),
        ((x, tensor("f32", 4, 8, 32), ids, tensor("f32", 8)), r"the bias must be f32\[4,8\]"),
    ]:
        with pytest.raises(OpTypeError, match=text):
            infer("expert_linear", operands, {})
    operands = tensor("q8", 1, 32), tensor("f32", 4, 8, 16), ids, tensor("f32", 1, 2)
    with pytest.raises(OpTypeError, match="a slot of 16 columns is not whole blocks of 32"):
        infer("expert_mix", operands, {})


@pytest.mark.parametrize("activations", ["q8", "f32"])
def test_every_rung_and_team_gives_the_same_bits(activations: str) -> None:
    for tokens in (1, 5):
        graph = stacks.stack("mm", tokens, activations)
        meant = run_graph(graph, stacks.values(graph))[graph.outputs[0]]
        first = stacks.run(graph, "ops", 1)
        np.testing.assert_allclose(first, meant, rtol=1e-3, atol=1e-2)
        for rung in stacks.RUNGS:
            for threads in (2, 3):
                np.testing.assert_array_equal(stacks.run(graph, rung, threads), first)


def test_a_token_is_computed_as_it_is_alone() -> None:
    prompt = stacks.stack("mm", 5)
    all_tokens = stacks.run(prompt, "pipelined", 2)
    np.testing.assert_array_equal(stacks.run(prompt, "pipelined", 2, count=3), all_tokens[:3])
    alone = stacks.stack("mm", 1)
    rows = stacks.values(prompt)[prompt.inputs[0].name]
    for t in range(5):
        found = stacks.run(alone, "pipelined", 1, x=rows[t : t + 1])
        np.testing.assert_array_equal(found, all_tokens[t : t + 1])


def test_one_token_reads_its_experts_only() -> None:
    program = stacks.compiled(stacks.stack("m"), "pipelined").program
    read = traffic(program).weights
    one = 3 * stacks.WIDTH * stacks.FFN // 32 * 18
    assert read["q4_0"] == stacks.SLOTS * one


def test_the_router_adds_one_stage_for_one_token() -> None:
    program = stacks.compiled(stacks.stack("mmm"), "pipelined").program
    (kernel,) = program.kernels
    assert [[op.name for op in stage.ops] for stage in kernel.stages] == [
        ["rms_norm", "linear"],
        ["rms_norm", "quantise", "route", "expert_linear", "expert_linear", "swiglu"],
        ["quantise", "route", "route_weights", "expert_mix", "add"],
    ]
