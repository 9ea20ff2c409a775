"""swiglu and add against their meanings, with tiles that start in the middle of a vector."""

import numpy as np
import pytest
from jit import compute, from_rows, rows_of

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
