"""rope against its meaning, bit for bit."""

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import OPS, OpTypeError, infer
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec

CONTEXT = 40


def table_for(dims: int) -> np.ndarray:
    rates = 10000.0 ** (-np.arange(dims // 2) / (dims // 2))
    angles = np.arange(CONTEXT)[:, None] * rates
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("head_dim", "dims"),
    [(2, 2), (6, 6), (12, 12), (16, 16), (20, 20), (64, 64), (16, 2), (20, 10), (64, 16), (80, 32)],
)
@pytest.mark.parametrize(
    ("tokens", "count", "at", "first_row"),
    [(1, 1, [7], 0), (4, 3, [7], 0), (1, 1, [7], 20), (4, 3, [11, 0, 3, 5], 0), (2, 2, [3, 4], 9)],
)
def test_it_means_what_numpy_says(
    pairing: str,
    head_dim: int,
    dims: int,
    tokens: int,
    count: int,
    at: list[int],
    first_row: int,
) -> None:
    width = 3 * head_dim
    x = np.random.default_rng(head_dim).normal(size=(tokens, width)).astype(np.float32)
    pos, table = np.array(at, np.int32), table_for(dims)
    type = tensor("f32", tokens, width)
    attrs = {"first_row": first_row, "head_dim": head_dim, "pairing": pairing}
    types = (type, tensor("i32", len(at)), tensor("f32", CONTEXT, dims))
    spec = OpSpec("rope", types, type, tuple(attrs.items()))
    buffers = [rows_of(x), buffer_of(pos), buffer_of(table)]
    y = from_rows(compute(spec, buffers, count, grain=head_dim), tokens, width)
    expected = OPS["rope"].meaning(x, pos, table, **attrs)
    np.testing.assert_array_equal(y[:count], expected[:count])
    assert np.isnan(y[count:]).all()
    heads = y[:count].reshape(count, 3, head_dim)
    np.testing.assert_array_equal(heads[..., dims:], x[:count].reshape(count, 3, -1)[..., dims:])


@pytest.mark.parametrize("dims", [3, 18])
def test_a_table_must_fit_the_heads(dims: int) -> None:
    types = [tensor("f32", 1, 32), tensor("i32", 1), tensor("f32", CONTEXT, dims)]
    with pytest.raises(OpTypeError, match="table"):
        infer("rope", types, {"first_row": 0, "head_dim": 16, "pairing": "half"})
