"""rms_norm against its meaning, with NaN in the padding."""

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
