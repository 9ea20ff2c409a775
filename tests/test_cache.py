"""store_keys and store_values: every element where the layout says, and nothing else written."""

import numpy as np
import pytest
from jit import TARGETS, aligned, buffer_of, rows_of, tile_function

from hotloop.ir.ops import CHUNK, OPS, infer
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec
from hotloop.lang import Target

HEADS = 2
DTYPE = {"f16": np.float16, "f32": np.float32}


def keys_in_order(cache: np.ndarray) -> np.ndarray:
    """[page][head][page / 16][head_dim][16] as [page, head, position, head_dim]."""
    pages, heads, page, dim = cache.shape
    blocks = cache.reshape(pages, heads, page // 16, dim, 16)
    return blocks.transpose(0, 1, 2, 4, 3).reshape(cache.shape)


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
@pytest.mark.parametrize("name", ["store_keys", "store_values"])
@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize(
    ("head_dim", "tokens", "count", "pos", "pages"),
    [
        (64, 1, 1, [0], [[0]]),
        (64, 3, 2, [7], [[0]]),
        (12, 16, 11, [CHUNK - 5], [[2, 0]]),
        (20, 1, 1, [CHUNK], [[1, 2]]),
        (2, 3, 3, [2 * CHUNK + 1, 0, 17], [[1, 4, 3], [2, 0, 0], [0, 0, 0]]),
        (6, 4, 2, [1, 2, 9, 9], [[3], [1], [0], [0]]),
    ],
)
def test_it_writes_what_numpy_writes(
    target: Target,
    name: str,
    form: str,
    head_dim: int,
    tokens: int,
    count: int,
    pos: list[int],
    pages: list[list[int]],
) -> None:
    x = np.random.default_rng(head_dim).normal(size=(tokens, HEADS * head_dim)).astype(np.float32)
    x[0, :2] = [65520, -1e-8]  # infinity and zero in half precision
    at, table = np.array(pos, np.int32), np.array(pages, np.int32)
    page = CHUNK if max(pos) >= 32 else 32
    type = tensor(
        form, int(table.max()) + 2, HEADS, page if table.shape[1] == 1 else CHUNK, head_dim
    )
    types = (
        type,
        tensor("f32", *x.shape),
        tensor("i32", len(pos)),
        tensor("i32", *table.shape),
    )
    attrs = {"head_dim": head_dim}
    assert infer(name, types, attrs) is None
    spec = OpSpec(name, types, None, tuple(attrs.items()))
    tile, buffer = tile_function(spec, target), aligned(type.nbytes)
    for lo in reversed(range(0, HEADS * head_dim, head_dim)):
        operands = [buffer, rows_of(x), buffer_of(at), buffer_of(table)]
        tile(operands, None, lo, lo + head_dim, count)

    expected = np.full(type.shape, np.nan, DTYPE[form])
    rows = slice(count) if len(pos) > 1 else slice(1)
    with np.errstate(over="ignore"):
        OPS[name].meaning(expected, x[:count], at[rows], table[rows], **attrs)
    cache = buffer.view(DTYPE[form]).reshape(type.shape)
    stored = keys_in_order(cache) if name == "store_keys" else cache
    np.testing.assert_array_equal(stored, expected)
