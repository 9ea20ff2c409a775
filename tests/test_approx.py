"""exp and log: the kernel language's give NumPy's bits; those, tanh and erf are near the truth."""

import ctypes
import math

import numpy as np
import pytest
from jit import TARGETS, Jit

from hotloop.ir import approx as meaning
from hotloop.kernels import approx
from hotloop.lang import Module, Target, f32, function, i64, ptr, strip


def compiled(name: str, target: Target, x: np.ndarray) -> np.ndarray:
    module = Module("approx", target)
    params = [("x", ptr), ("y", ptr), ("n", i64)]
    with function(module, "each", params, exported=True) as (source, out, n):
        for i, lanes in strip(n, lanes=1 if name == "log" else 8):
            value = source.cast(f32).load(i, 0 if name == "log" else lanes)
            out.cast(f32).store(getattr(approx, name)(value), i)
    jit, y = Jit(module), np.empty_like(x)
    call = jit.function("each", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call(x.ctypes.data, y.ctypes.data, len(x))
    return y


EDGES = [0, -0.0, 1e-45, 87.68, 88.37, 88.38, 88.72, 88.73, 89, 104, 1e9, 3.4e38, np.inf]


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
def test_exp_gives_the_bits_of_its_meaning(target: Target) -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([EDGES, np.negative(EDGES), random.uniform(-95, 95, 20_001), [np.nan]])
    x = x.astype(np.float32)
    np.testing.assert_array_equal(compiled("exp", target, x), meaning.exp(x))


def test_exp_is_within_its_stated_error() -> None:
    x = np.concatenate(
        [np.linspace(-87, 88, 2_000_003), np.linspace(-1, 1, 500_003)], dtype=np.float32
    )
    true = np.exp(x.astype(np.float64))
    assert np.abs(meaning.exp(x) / true - 1).max() < 1.5e-7


def test_exp_at_its_limits() -> None:
    x = np.array([-np.inf, -3e38, -87.7, 88.4, 3e38, np.inf, 0, -0.0, np.nan], np.float32)
    expected = np.array([0, 0, 0, np.inf, np.inf, np.inf, 1, 1, np.nan], np.float32)
    np.testing.assert_array_equal(meaning.exp(x), expected)


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
def test_log_gives_the_bits_of_its_meaning_and_rounds_right(target: Target) -> None:
    random = np.random.default_rng(1)
    x = np.concatenate([[1, 0.5, 0.05, 2, 1e-45, 1e-38, 3.4e38], random.uniform(0, 1, 1000)])
    x = x.astype(np.float32)
    y = compiled("log", target, x)
    np.testing.assert_array_equal(y, [meaning.log(float(v)) for v in x])
    np.testing.assert_array_equal(y, [np.float32(math.log(float(v))) for v in x])


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
def test_tanh_is_within_its_stated_error(target: Target) -> None:
    small = np.geomspace(1e-30, 1e-2, 10_001)
    x = np.concatenate([small, -small, np.linspace(-12, 12, 500_003)], dtype=np.float32)
    true = np.tanh(x.astype(np.float64))
    assert np.abs(compiled("tanh", target, x) - true).max() < 2e-7
    nonzero = x != 0
    assert np.abs(compiled("tanh", target, x)[nonzero] / true[nonzero] - 1).max() < 4e-7


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
def test_erf_is_within_its_stated_error(target: Target) -> None:
    x = np.linspace(-5, 5, 50_003, dtype=np.float32)
    true = [math.erf(float(v)) for v in x]
    assert np.abs(compiled("erf", target, x) - true).max() < 6e-7


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_tanh_and_erf_at_their_limits(name: str) -> None:
    x = np.array([0, -0.0, 20, -20, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    expected = np.array([0, -0.0, 1, -1, 1, -1, 1, -1, np.nan], np.float32)
    y = compiled(name, TARGETS[0], x)
    np.testing.assert_allclose(y, expected, atol=4e-7)
    np.testing.assert_array_equal(np.signbit(y[:-1]), np.signbit(expected[:-1]))
