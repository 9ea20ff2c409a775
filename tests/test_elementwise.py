"""Elementwise ops against their meanings, with tiles that start in the middle of a vector."""

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import OPS
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec


def computed(name: str, a: np.ndarray, b: np.ndarray, count: int, grain: int) -> np.ndarray:
    type = tensor("f32", *a.shape)
    spec = OpSpec(name, (type, type), type)
    return from_rows(compute(spec, [rows_of(a), rows_of(b)], count, grain), *a.shape)


@pytest.mark.parametrize("width", [1, 12, 20, 64])
@pytest.mark.parametrize("grain", [8, 12])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_they_mean_what_numpy_says(width: int, grain: int, tokens: int, count: int) -> None:
    random = np.random.default_rng(width)
    a, b = random.normal(0, 4, (2, tokens, width)).astype(np.float32)
    total = computed("add", a, b, count, grain)
    np.testing.assert_array_equal(total[:count], (a + b)[:count])
    assert np.isnan(total[count:]).all()
    gated = computed("swiglu", a, b, count, grain)
    expected = OPS["swiglu"].meaning(a, b)
    # exp errs by 1.5e-7 of itself, and three more roundings follow it, here and in NumPy.
    np.testing.assert_allclose(gated[:count], expected[:count], rtol=1e-6)
    assert np.isnan(gated[count:]).all()


def test_swiglu_has_the_right_limits() -> None:
    gate = np.array([[-np.inf, -3e38, -200, -89, -88, -87, 0, 87, 88, 89, 200, np.inf]], np.float32)
    y = computed("swiglu", gate, np.ones_like(gate), 1, 8)[0]
    np.testing.assert_allclose(y[:6], 0, atol=1e-34)
    np.testing.assert_array_equal(y[6:], gate[0, 6:])


def test_swiglu_passes_nan_on() -> None:
    gate = np.array([[np.nan] * 9 + [1]], np.float32)
    y = computed("swiglu", gate, np.ones_like(gate), 1, 8)[0]
    assert np.isnan(y[:9]).all()
    assert np.isfinite(y[9])


ACTIVATIONS = {
    "scale": (1, {"factor": -0.7}),
    "softcap": (1, {"cap": 5.0}),
    "gelu": (1, {"form": "tanh"}),
    "gelu of erf": (1, {"form": "erf"}),
    "geglu": (2, {"form": "tanh"}),
    "geglu of erf": (2, {"form": "erf"}),
    "swiglu_clamped": (2, {"alpha": 1.702, "limit": 7.0}),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
@pytest.mark.parametrize(("width", "tokens", "count"), [(20, 1, 1), (37, 3, 2)])
def test_activations_mean_what_numpy_says(case: str, width: int, tokens: int, count: int) -> None:
    name, (operands, attrs) = case.partition(" ")[0], ACTIVATIONS[case]
    inputs = np.random.default_rng(width).normal(0, 4, (operands, tokens, width))
    inputs = inputs.astype(np.float32)
    type = tensor("f32", tokens, width)
    spec = OpSpec(name, (type,) * operands, type, tuple(sorted(attrs.items())))
    y = from_rows(compute(spec, [rows_of(x) for x in inputs], count, 8), tokens, width)
    expected = OPS[name].meaning(*inputs.astype(np.float64), **attrs)
    # erf is held to an absolute error of 6e-7, which gelu multiplies by half its argument.
    np.testing.assert_allclose(y[:count], expected[:count], rtol=3e-6, atol=4e-6)
    assert np.isnan(y[count:]).all()


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations_pass_nan_on_and_stay_finite(case: str) -> None:
    name, (operands, attrs) = case.partition(" ")[0], ACTIVATIONS[case]
    x = np.array([[np.nan, 1, 1e9, -1e9, 2, 3, 4, 5, np.nan]], np.float32)
    type = tensor("f32", *x.shape)
    spec = OpSpec(name, (type,) * operands, type, tuple(sorted(attrs.items())))
    ones = [np.ones_like(x)] * (operands - 1)
    y = from_rows(compute(spec, [rows_of(a) for a in [x, *ones]], 1, 8), *x.shape)
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(x))
    expected = OPS[name].meaning(*[a.astype(np.float64) for a in [x, *ones]], **attrs)
    np.testing.assert_allclose(y[0, 4:8], expected[0, 4:8], rtol=3e-6)


@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_a_bias_is_the_same_for_every_token(tokens: int, count: int) -> None:
    random = np.random.default_rng(0)
    x, vector = random.normal(size=(tokens, 37)), random.normal(size=37)
    x, vector = x.astype(np.float32), vector.astype(np.float32)
    type = tensor("f32", tokens, 37)
    spec = OpSpec("bias", (type, tensor("f32", 37)), type)
    y = from_rows(compute(spec, [rows_of(x), buffer_of(vector)], count, 8), tokens, 37)
    np.testing.assert_array_equal(y[:count], (x + vector)[:count])
    assert np.isnan(y[count:]).all()


@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_a_gate_is_the_same_for_a_token(tokens: int, count: int) -> None:
    random = np.random.default_rng(0)
    x, gate = random.normal(size=(tokens, 37)), random.normal(0, 9, size=(tokens, 1))
    x, gate = x.astype(np.float32), gate.astype(np.float32)
    type = tensor("f32", tokens, 37)
    spec = OpSpec("gated", (type, tensor("f32", tokens, 1)), type)
    y = from_rows(compute(spec, [rows_of(x), rows_of(gate)], count, 8), tokens, 37)
    expected = OPS["gated"].meaning(x.astype(np.float64), gate.astype(np.float64))
    np.testing.assert_allclose(y[:count], expected[:count], rtol=1e-6)
    assert np.isnan(y[count:]).all()
