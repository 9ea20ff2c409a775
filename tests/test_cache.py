"""store_keys and store_values: every element where the layout says, and nothing else written."""

import numpy as np
import pytest
from jit import TARGETS, aligned, buffer_of, rows_of, tile_function

from hotloop.ir.ops import OPS
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec
from hotloop.lang import Target

CONTEXT, HEADS = 32, 2
DTYPE = {"f16": np.float16, "f32": np.float32}


def keys_in_order(cache: np.ndarray) -> np.ndarray:
    """[head][context / 16][head_dim][16] as [head, context, head_dim]."""
    heads, context, dim = cache.shape
    return cache.reshape(heads, context // 16, dim, 16).transpose(0, 1, 3, 2).reshape(cache.shape)


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
@pytest.mark.parametrize("name", ["store_keys", "store_values"])
@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize(
    ("head_dim", "tokens", "count", "first"),
    [(64, 1, 1, 0), (64, 3, 2, 7), (12, 16, 11, 5), (20, 1, 1, 23), (2, 3, 3, 14)],
)
def test_it_writes_what_numpy_writes(
    target: Target, name: str, form: str, head_dim: int, tokens: int, count: int, first: int
) -> None:
    x = np.random.default_rng(head_dim).normal(size=(tokens, HEADS * head_dim)).astype(np.float32)
    x[0, :2] = [65520, -1e-8]  # infinity and zero in half precision
    pos = np.array([first], np.int32)
    type = tensor(form, HEADS, CONTEXT, head_dim)
    types = (type, tensor("f32", *x.shape), tensor("i32", 1))
    spec = OpSpec(name, types, None, (("head_dim", head_dim),))
    tile, buffer = tile_function(spec, target), aligned(type.nbytes)
    for lo in reversed(range(0, HEADS * head_dim, head_dim)):
        tile([buffer, rows_of(x), buffer_of(pos)], None, lo, lo + head_dim, count)

    expected = np.full(type.shape, np.nan, DTYPE[form])
    with np.errstate(over="ignore"):
        OPS[name].meaning(expected, x[:count], pos, head_dim=head_dim)
    cache = buffer.view(DTYPE[form]).reshape(type.shape)
    stored = keys_in_order(cache) if name == "store_keys" else cache
    np.testing.assert_array_equal(stored, expected)
