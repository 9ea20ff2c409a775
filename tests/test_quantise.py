"""quantise against its meaning, and what it does with numbers that 8 bit cannot hold."""

import numpy as np
import pytest
from jit import compute, rows_of

from hotloop.ir.ops import OPS
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec, define, q8_stride
from hotloop.lang import Module
from hotloop.lang.target import host


def quantised(x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The int8 values [T, blocks, 32], the scales and the scaled sums [T, blocks]."""
    tokens, width = x.shape
    spec = OpSpec("quantise", (tensor("f32", *x.shape),), tensor("q8", *x.shape))
    records = compute(spec, [rows_of(x)], count).reshape(tokens, q8_stride(width))
    assert (records[count:] == 0xFF).all()
    q = records[:, :width].view(np.int8).reshape(tokens, -1, 32)
    scales = records[:, width : width + width // 32 * 8].view(np.float32)
    halves = records[:, width + width // 32 * 8 : width + width // 32 * 16].view(np.int32)
    sums = q.reshape(tokens, -1, 16).sum(axis=-1, dtype=np.int32)
    np.testing.assert_array_equal(halves[:count], sums[:count])
    return q, scales[:, : width // 32], scales[:, width // 32 :]


@pytest.mark.parametrize("width", [32, 96, 256, 288, 576])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (3, 2)])
def test_it_means_what_numpy_says(width: int, tokens: int, count: int) -> None:
    x = np.random.default_rng(width).normal(0, 2, (tokens, width)).astype(np.float32)
    q, scale, sums = quantised(x, count)
    expected = OPS["quantise"].meaning(x).reshape(q.shape)
    # The same float32 operations in the same order: not a bit differs.
    np.testing.assert_array_equal((q * scale[..., None])[:count], expected[:count])
    np.testing.assert_array_equal(sums[:count], (scale * q.sum(axis=-1, dtype=np.float32))[:count])


def test_halves_round_to_even() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    q, scale, _ = quantised(x, 1)
    assert scale[0, 0] == 1
    assert q[0, 0, :7].tolist() == [127, 0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 1e-36, 1e37])
def test_every_finite_size_gives_finite_values(largest: float) -> None:
    x = np.linspace(-largest, largest, 64, dtype=np.float32)[None]
    q, scale, sums = quantised(x, 1)
    error = np.abs(q * scale[..., None].astype(np.float64) - x.reshape(q.shape))
    # Half a unit, or all of it where the scale would be too small to divide by.
    assert error.max() <= max(largest / 127 * 0.5001, 127 * 2.0**-126)
    assert np.isfinite(sums).all()


def test_infinity_and_nan_give_no_byte_that_dot_products_bar() -> None:
    x = np.random.default_rng(0).normal(0, 1, (1, 96)).astype(np.float32)
    x[0, [3, 40, 41, 70]] = [np.inf, np.nan, -np.inf, np.nan]
    q, scale, _ = quantised(x, 1)
    assert q.min() >= -127
    assert not np.isfinite(scale[0, 0])


def test_widths_share_their_code() -> None:
    module = Module("quantise", host())
    for width in (256, 288, 4096, 32, 96):
        spec = OpSpec("quantise", (tensor("f32", 1, width),), tensor("q8", 1, width))
        define(module, spec, f"tile_{width}")
    shared = [name for name in module.functions if name.startswith("quantise_")]
    assert sorted(shared) == ["quantise_by_1", "quantise_by_8"]
