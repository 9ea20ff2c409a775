"""rope against its meaning, bit for bit."""

import numpy as np
import pytest
from jit import buffer_of, compute, from_rows, rows_of

from hotloop.ir.ops import OPS
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec

CONTEXT = 40


def table_for(head_dim: int) -> np.ndarray:
    rates = 10000.0 ** (-np.arange(head_dim // 2) / (head_dim // 2))
    angles = np.arange(CONTEXT)[:, None] * rates
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("head_dim", [2, 6, 12, 16, 20, 64])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (4, 3)])
def test_it_means_what_numpy_says(pairing: str, head_dim: int, tokens: int, count: int) -> None:
    width = 3 * head_dim
    x = np.random.default_rng(head_dim).normal(size=(tokens, width)).astype(np.float32)
    pos, table = np.array([7], np.int32), table_for(head_dim)
    type = tensor("f32", tokens, width)
    attrs = (("head_dim", head_dim), ("pairing", pairing))
    types = (type, tensor("i32", 1), tensor("f32", CONTEXT, head_dim))
    spec = OpSpec("rope", types, type, attrs)
    buffers = [rows_of(x), buffer_of(pos), buffer_of(table)]
    y = from_rows(compute(spec, buffers, count, grain=head_dim), tokens, width)
    expected = OPS["rope"].meaning(x, pos, table, head_dim=head_dim, pairing=pairing)
    np.testing.assert_array_equal(y[:count], expected[:count])
    assert np.isnan(y[count:]).all()
