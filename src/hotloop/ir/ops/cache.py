"""store_keys, store_values: the KV cache, and what its elements mean.

A cache is `[pages, heads, page, width]`: positions lie in pages of `CHUNK` (or in a single shorter
one), and `pages` i32[S, n] says which page holds the positions from i · CHUNK on, for each of the S
sequences of the step. So sequences share the memory of one cache, and the pages of a common
beginning.

Of f16 and f32, the width is that of a head. An i8 cache has 8-bit codes, -127 … 127, of which each
head of a position has one float32 scale: its width is that of a head, rounded up to 16, and the
bytes of the scale after that.
"""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import (
    Array,
    Attrs,
    OpDef,
    activation,
    head_dim,
    need,
    positions,
    positions_of,
)
from hotloop.ir.types import TensorType, tensor

#: Positions of a chunk: attention sums over each chunk by itself, then over the chunks in order.
#: A page of the cache holds one.
CHUNK = 256
#: Bytes of an i8 cache's scale.
SCALE_BYTES = 4
LARGEST_CODE = 127
#: The smallest scale whose reciprocal is finite; with a smaller one, all codes are zero.
SMALLEST_SCALE = 2.0**-126


def chunk_count(context: int) -> int:
    return -(-context // CHUNK)


def code_width(head_dim: int) -> int:
    """Codes of a head in an i8 cache, with those that fill up its last sixteen."""
    return -(-head_dim // 16) * 16


def cache_width(format_name: str, head_dim: int) -> int:
    """The last dimension of a cache for heads of `head_dim`."""
    return code_width(head_dim) + SCALE_BYTES if format_name == "i8" else head_dim


def cache_type(format_name: str, pages: int, heads: int, page: int, head_dim: int) -> TensorType:
    """A cache of f16, f32 or i8."""
    return tensor(format_name, pages, heads, page, cache_width(format_name, head_dim))


def need_cache(cache: TensorType, pages: TensorType, tokens: int, head_dim: int) -> None:
    name = cache.format.name
    need(
        name in ("f16", "f32", "i8") and len(cache.shape) == 4,
        f"a cache must be f16, f32 or i8 [pages,heads,page,width], not {cache}",
    )
    width = cache_width(name, head_dim)
    need(
        cache.shape[3] == width,
        f"a cache of {name} for heads of {head_dim} must be {width} wide, not {cache}",
    )
    need(
        pages.format.name == "i32" and len(pages.shape) == 2 and pages.shape[0] in (1, tokens),
        f"the page table must be i32[1,n] or i32[{tokens},n], not {pages}",
    )
    page = cache.shape[2]
    need(
        page == CHUNK or (page < CHUNK and page % 16 == 0 and pages.shape[1] == 1),
        f"a page must hold {CHUNK} positions, or a multiple of 16 where it is the only one, "
        f"not {page}",
    )


def place(pages: Array, token: int, position: int) -> tuple[int, int]:
    """(page, position in it) of a token's position."""
    row = pages[token if len(pages) > 1 else 0]
    return int(row[position // CHUNK]), position % CHUNK


def largest_query_code(head_dim: int) -> int:
    """Queries of an i8 cache are codes, too: of 16 bit, and so that a dot product fits in 32."""
    return min(2**15 - 1, (2**31 - 1) // (LARGEST_CODE * head_dim))


def _codes(heads: Array, largest: int) -> tuple[Array, Array]:
    """Codes -largest … largest of float32 [..., head_dim], and their scales [..., 1].

    A head with an infinity or NaN gets NaN for its scale: none of it is a number any more.
    """
    with np.errstate(invalid="ignore"):
        nothing = (heads * np.float32(0)).sum(axis=-1, keepdims=True)  # or NaN
        scale = np.abs(heads).max(axis=-1, keepdims=True) / np.float32(largest) + nothing
    normal = scale >= np.float32(SMALLEST_SCALE)
    inverse = np.where(normal, 1, 0) / np.where(normal, scale, np.float32(1))
    finite = np.where(np.isfinite(heads), heads, 0)
    return np.rint(finite * inverse.astype(np.float32)), scale


def encoded(heads: Array) -> Array:
    """int8 [..., width]: float32 [..., head_dim] as an i8 cache holds them."""
    dim = heads.shape[-1]
    out = np.zeros((*heads.shape[:-1], cache_width("i8", dim)), np.int8)
    out[..., :dim], scale = _codes(heads, LARGEST_CODE)
    out[..., -SCALE_BYTES:] = scale.astype("<f4").view(np.int8)
    return out


def asked(queries: Array, cache: Array) -> Array:
    """float32 [..., head_dim]: the queries as `cache` is asked, rounded where it holds codes."""
    if cache.dtype != np.int8:
        return queries
    codes, scale = _codes(queries, largest_query_code(queries.shape[-1]))
    return np.asarray(codes * scale, dtype=np.float32)


def decoded(cells: Array, head_dim: int) -> Array:
    """float32 [..., head_dim]: the heads that `cells` of a cache hold."""
    if cells.dtype != np.int8:
        return np.asarray(cells, dtype=np.float32)
    scale = np.ascontiguousarray(cells[..., -SCALE_BYTES:]).view("<f4")
    return np.asarray(cells[..., :head_dim] * scale, dtype=np.float32)


def _infer_store(types: Sequence[TensorType], attrs: Attrs) -> None:
    cache, x, pos, pages = types
    tokens, width = activation(x, "the input")
    head = head_dim(attrs)
    need_cache(cache, pages, tokens, head)
    heads = cache.shape[1]
    need(width == heads * head, f"width {width} is not {heads} heads of {head}")
    positions(pos, tokens)
    need(pos.shape[0] == pages.shape[0], f"{pos} and {pages} differ in sequences")


def _store(cache: Array, x: Array, pos: Array, pages: Array, *, head_dim: int) -> None:
    tokens = x.shape[0]
    rows = x.reshape(tokens, -1, head_dim)
    for token, position in enumerate(positions_of(pos, tokens)):
        page, at = place(pages, token, int(position))
        cache[page, :, at] = encoded(rows[token]) if cache.dtype == np.int8 else rows[token]


def _store_op(name: str) -> OpDef:
    return OpDef(
        name,
        "features",
        _infer_store,
        _store,
        ("head_dim",),
        aligned=(0, 1),
        writes=(0,),
        grain=head_dim,
    )


OPS = (_store_op("store_keys"), _store_op("store_values"))
