"""store_keys, store_values, attention, attend, combine: the KV cache, and what reads it."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, head_dim, need, one, position
from hotloop.ir.types import TensorType, tensor

#: Positions of a chunk: attention sums over each chunk by itself, then over the chunks in order.
CHUNK = 256
#: Rows of `attend`, where there is work for as many.
SHARES = 32


def _infer_store(types: Sequence[TensorType], attrs: Attrs) -> None:
    cache, x, pos = types
    need(
        cache.format.name in ("f16", "f32") and len(cache.shape) == 3,
        f"a cache must be f16 or f32 [heads,context,head_dim], not {cache}",
    )
    _, width = activation(x, "the input")
    heads, _, head = cache.shape
    need(width == heads * head, f"width {width} is not {heads} heads of {head}")
    position(pos)


def _store(cache: Array, x: Array, pos: Array, *, head_dim: int) -> None:
    heads, _, head = cache.shape
    at = int(pos[0])
    rows = x.reshape(x.shape[0], heads, head).transpose(1, 0, 2)
    cache[:, at : at + x.shape[0]] = rows


def _infer_attention(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q, keys, values, pos = types
    _, width = activation(q, "the query")
    need(keys == values, f"keys and values differ: {keys} and {values}")
    heads, head = int(attrs["heads"]), keys.shape[2]
    need(width == heads * head, f"width {width} is not {heads} heads of {head}")
    need(heads % keys.shape[0] == 0, f"{heads} heads do not divide over {keys.shape[0]} key heads")
    position(pos)
    return q


def _attention(
    q: Array, keys: Array, values: Array, pos: Array, *, heads: int, scale: float
) -> Array:
    """Causal attention over positions 0 … pos + t of the cache, softmax in float32."""
    tokens, width = q.shape
    kv_heads, _, head = keys.shape
    first = int(pos[0])
    out = np.empty((tokens, heads, head), np.float32)
    for t in range(tokens):
        seen = first + t + 1
        k = keys[:, :seen].astype(np.float32)
        v = values[:, :seen].astype(np.float32)
        query = q[t].reshape(kv_heads, heads // kv_heads, head)
        scores = np.einsum("hgd,hpd->hgp", query, k) * np.float32(scale)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = scores / scores.sum(axis=-1, keepdims=True)
        out[t] = np.einsum("hgp,hpd->hgd", weights, v).reshape(heads, head)
    return out.reshape(tokens, width)


def chunk_count(context: int) -> int:
    return -(-context // CHUNK)


def _infer_attend(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q = _infer_attention(types, attrs)
    _, context, head = types[1].shape
    need(q.shape[0] == 1, f"attend takes one token, not {q.shape[0]}")
    return tensor("f32", 1, int(attrs["heads"]) * chunk_count(context) * (head + 2))


def _attend(q: Array, keys: Array, values: Array, pos: Array, *, heads: int, scale: float) -> Array:
    """Each chunk of positions by itself, [heads, chunks, head_dim + 2].

    The last dimension is the sum of the chunk's values weighted by exp(score - largest), then the
    largest score, then the sum of weights. Chunks beyond the position are not written.
    """
    kv_heads, context, head = keys.shape
    query = q.reshape(kv_heads, heads // kv_heads, head)
    out = np.full((heads, chunk_count(context), head + 2), np.nan, np.float32)
    seen = int(pos[0]) + 1
    for chunk in range(chunk_count(seen)):
        part = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, seen))
        k, v = keys[:, part].astype(np.float32), values[:, part].astype(np.float32)
        scores = np.einsum("hgd,hpd->hgp", query, k) * np.float32(scale)
        largest = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - largest)
        out[:, chunk, :head] = np.einsum("hgp,hpd->hgd", weights, v).reshape(heads, head)
        out[:, chunk, head] = largest.reshape(heads)
        out[:, chunk, head + 1] = weights.sum(axis=-1).reshape(heads)
    return out.reshape(1, -1)


def _infer_combine(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    partials, pos = types
    tokens, width = activation(partials, "the input")
    heads, head = int(attrs["heads"]), int(attrs["head_dim"])
    need(tokens == 1, f"combine takes one token, not {tokens}")
    need(width % (heads * (head + 2)) == 0, f"width {width} is not chunks of {heads} heads")
    position(pos)
    return tensor("f32", 1, heads * head)


def _combine(partials: Array, pos: Array, *, heads: int, head_dim: int) -> Array:
    """The attention of all chunks up to the position: chunks weigh exp(largest) × their sum."""
    chunks = partials.reshape(heads, -1, head_dim + 2)[:, : chunk_count(int(pos[0]) + 1)]
    values, largest, total = chunks[..., :-2], chunks[..., -2], chunks[..., -1]
    factors = np.exp(largest - largest.max(axis=-1, keepdims=True))
    out = np.einsum("hc,hcd->hd", factors, values) / np.sum(factors * total, -1, keepdims=True)
    return np.asarray(out.reshape(1, -1), dtype=np.float32)


OPS = (
    OpDef(
        "store_keys",
        "features",
        _infer_store,
        _store,
        ("head_dim",),
        aligned=(0, 1),
        writes=(0,),
        grain=head_dim,
    ),
    OpDef(
        "store_values",
        "features",
        _infer_store,
        _store,
        ("head_dim",),
        aligned=(0, 1),
        writes=(0,),
        grain=head_dim,
    ),
    OpDef(
        "attention",
        "heads",
        _infer_attention,
        _attention,
        ("heads", "scale"),
        grain=one,
    ),
    OpDef(
        "attend",
        "shares",
        _infer_attend,
        _attend,
        ("heads", "scale"),
        grain=one,
        leaves_rest=True,
    ),
    OpDef(
        "combine",
        "tokens",
        _infer_combine,
        _combine,
        ("heads", "head_dim"),
        aligned=(0,),
        grain=one,
    ),
)
