"""store_keys and store_values: every element where the layout says, and nothing else written."""

import numpy as np
import pytest
from jit import TARGETS, aligned, buffer_of, rows_of, tile_function

from hotloop.ir.ops import CHUNK, OPS, cache_type, infer
from hotloop.ir.ops.cache import SCALE_BYTES, decoded, encoded
from hotloop.ir.types import tensor
from hotloop.kernels.tile import OpSpec
from hotloop.lang import Target

HEADS = 2
DTYPE = {"f16": np.float16, "f32": np.float32, "i8": np.int8}


def keys_in_order(cache: np.ndarray) -> np.ndarray:
    """Keys as they lie in memory as [page, head, position, width]."""
    pages, heads, page, dim = cache.shape
    if cache.dtype == np.int8:
        codes, scales = codes_and_scales(cache)
        blocks = codes.reshape(pages, heads, page // 16, -1, 16, 2).transpose(0, 1, 2, 4, 3, 5)
        return np.concatenate([blocks.reshape(pages, heads, page, -1), scales], axis=-1)
    blocks = cache.reshape(pages, heads, page // 16, dim, 16)
    return blocks.transpose(0, 1, 2, 4, 3).reshape(cache.shape)


def values_in_order(cache: np.ndarray) -> np.ndarray:
    pages, heads, page, _ = cache.shape
    if cache.dtype != np.int8:
        return cache
    codes, scales = codes_and_scales(cache)
    pairs = codes.reshape(pages, heads, page // 2, -1, 2).transpose(0, 1, 2, 4, 3)
    return np.concatenate([pairs.reshape(pages, heads, page, -1), scales], axis=-1)


def codes_and_scales(cache: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All codes of a head's page, and the bytes of all its scales."""
    pages, heads, page, width = cache.shape
    rows = cache.reshape(pages, heads, page * width)
    codes = page * (width - SCALE_BYTES)
    return rows[..., :codes], rows[..., codes:].reshape(pages, heads, page, SCALE_BYTES)


@pytest.mark.parametrize("target", TARGETS, ids=["native", "portable"])
@pytest.mark.parametrize("name", ["store_keys", "store_values"])
@pytest.mark.parametrize("form", DTYPE)
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
    size = page if table.shape[1] == 1 else CHUNK
    type = cache_type(form, int(table.max()) + 2, HEADS, size, head_dim)
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

    unwritten = np.frombuffer(b"\xff" * 4, DTYPE[form])[0]
    expected = np.full(type.shape, unwritten)
    rows = slice(count) if len(pos) > 1 else slice(1)
    with np.errstate(over="ignore"):
        OPS[name].meaning(expected, x[:count], at[rows], table[rows], **attrs)
    cache = buffer.view(DTYPE[form]).reshape(type.shape)
    stored = keys_in_order(cache) if name == "store_keys" else values_in_order(cache)
    if form == "i8":  # nothing is written where a head has no element
        expected[..., head_dim:-SCALE_BYTES] = unwritten
    np.testing.assert_array_equal(stored, expected)


def test_codes_are_near_what_they_encode() -> None:
    """Half a step of the scale at most; a head of zeros, or nearly, stays one."""
    x = np.random.default_rng(1).normal(size=(3, 5, 20)).astype(np.float32)
    x[1, 1], x[2, 2] = 0, 1e-42
    back = decoded(encoded(x), 20)
    step = np.abs(x).max(axis=-1, keepdims=True) / 127
    assert (np.abs(back - x) <= step / 2 * 1.0001 + 1e-41).all()
    assert not back[1, 1].any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_does_not_become_one(wrong: float) -> None:
    x = np.ones((2, 2, 8), np.float32)
    x[0, 1, 3] = wrong
    back = decoded(encoded(x), 8)
    assert np.isnan(back[0, 1]).all()
    np.testing.assert_allclose(np.delete(back.reshape(4, 8), 1, axis=0), 1, rtol=1e-6)
