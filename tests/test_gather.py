"""gather against NumPy's indexing, bit for bit."""

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import OpTypeError, infer
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec


def gathered(x: np.ndarray, order: np.ndarray, count: int) -> np.ndarray:
    types = tensor("f32", *x.shape), tensor("i32", *order.shape)
    result = infer("gather", types, {})
    assert result is not None
    spec = OpSpec("gather", types, result)
    buffer = compute(spec, [rows_of(x), buffer_of(order)], count)
    return from_rows(buffer, *result.shape)


@pytest.mark.parametrize(("width", "columns"), [(1, 1), (7, 7), (64, 64), (96, 33), (200, 1000)])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (5, 3)])
def test_it_means_what_numpy_says(width: int, columns: int, tokens: int, count: int) -> None:
    random = np.random.default_rng(width)
    x = random.normal(size=(tokens, width)).astype(np.float32)
    order = random.integers(0, width, columns).astype(np.int32)
    y = gathered(x, order, count)
    np.testing.assert_array_equal(y[:count], x[:count, order])
    assert np.isnan(y[count:]).all()


def test_no_number_reads_outside_of_the_input() -> None:
    """Who hands it a broken order gets the last column, not the memory behind it."""
    x = np.arange(16, dtype=np.float32)[None]
    order = np.array([3, 16, -1, 2**31 - 1, -(2**31), 0], np.int32)
    assert gathered(x, order, 1).tolist() == [[3, 15, 15, 15, 15, 0]]


@pytest.mark.parametrize("order", [tensor("f32", 8), tensor("i32", 8, 1), tensor("i8", 8)])
def test_an_order_is_a_vector_of_integers(order: object) -> None:
    with pytest.raises(OpTypeError, match=r"the order must be i32\[N\]"):
        infer("gather", [tensor("f32", 1, 8), order], {})
