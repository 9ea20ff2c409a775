"""The norms against their meanings, with NaN in the padding."""

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import OPS
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec

EPS = 1e-5


def normed(x: np.ndarray, weight: np.ndarray, count: int) -> np.ndarray:
    tokens, width = x.shape
    type = tensor("f32", tokens, width)
    spec = OpSpec("rms_norm", (type, tensor("f32", width)), type, (("eps", EPS),))
    return from_rows(compute(spec, [rows_of(x), buffer_of(weight)], count), tokens, width)


def operands(tokens: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(width)
    x = random.normal(0, 3, (tokens, width)).astype(np.float32)
    return x, random.normal(1, 0.2, width).astype(np.float32)


@pytest.mark.parametrize("width", [1, 8, 15, 20, 33, 64, 576])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_it_means_what_numpy_says(width: int, tokens: int, count: int) -> None:
    x, weight = operands(tokens, width)
    y = normed(x, weight, count)
    expected = OPS["rms_norm"].meaning(x, weight, eps=EPS)
    # The sum of squares errs by a few roundings of sums of positive numbers; so does NumPy's.
    np.testing.assert_allclose(y[:count], expected[:count], rtol=2e-6)
    assert np.isnan(y[count:]).all()


def test_zeros_stay_zeros_and_large_rows_finite() -> None:
    x, weight = operands(2, 40)
    x[0], x[1] = 0, 1e15
    y = normed(x, weight, 2)
    assert (y[0] == 0).all()
    np.testing.assert_allclose(y[1], weight, rtol=2e-6)


def test_nan_stays_in_its_row() -> None:
    x, weight = operands(2, 40)
    x[0, 7] = np.nan
    y = normed(x, weight, 2)
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.parametrize("head_dim", [2, 12, 16, 20, 33, 64])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_head_norm_means_what_numpy_says(head_dim: int, tokens: int, count: int) -> None:
    width = 3 * head_dim
    x, _ = operands(tokens, width)
    weight = np.random.default_rng(1).normal(1, 0.2, head_dim).astype(np.float32)
    type, attrs = tensor("f32", tokens, width), {"eps": EPS, "head_dim": head_dim}
    spec = OpSpec("head_norm", (type, tensor("f32", head_dim)), type, tuple(attrs.items()))
    buffers = [rows_of(x), buffer_of(weight)]
    y = from_rows(compute(spec, buffers, count, grain=head_dim), tokens, width)
    expected = OPS["head_norm"].meaning(x, weight, **attrs)
    np.testing.assert_allclose(y[:count], expected[:count], rtol=2e-6)
    assert np.isnan(y[count:]).all()


@pytest.mark.parametrize("width", [1, 15, 20, 33, 64, 576])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_layer_norm_means_what_numpy_says(
    width: int, with_bias: bool, tokens: int, count: int
) -> None:
    x, weight = operands(tokens, width)
    x += 5  # a mean that must go before squares are summed
    vectors = [weight, weight[::-1].copy()] if with_bias else [weight]
    type = tensor("f32", tokens, width)
    types = (type, *[tensor("f32", width) for _ in vectors])
    spec = OpSpec("layer_norm", types, type, (("eps", EPS),))
    buffers = [rows_of(x), *map(buffer_of, vectors)]
    y = from_rows(compute(spec, buffers, count), tokens, width)
    expected = OPS["layer_norm"].meaning(x.astype(np.float64), *vectors, eps=EPS)
    np.testing.assert_allclose(y[:count], expected[:count], rtol=1e-5, atol=1e-5)
    assert np.isnan(y[count:]).all()
