"""attention, attend, combine: what reads the KV cache (`hotloop.ir.ops.cache`).

A token at position p sees the positions 0 … p, or with a `window` w > 0 the last w of them. Scores
s become cap · tanh(s / cap) where `softcap` is not 0. *Sinks*, f32[heads], are scores of a position
that has no value: weight that goes nowhere (Xiao et al., 2023, arXiv 2309.17453).
"""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import (
    Array,
    Attrs,
    OpDef,
    activation,
    need,
    one,
    positions,
    positions_of,
)
from hotloop.ir.ops.cache import CHUNK, asked, chunk_count, decoded, need_cache, place
from hotloop.ir.types import TensorType, tensor

#: Rows of `attend`, where there is work for as many.
SHARES = 32


ATTRS = ("heads", "scale", "softcap", "window")


def _chunk(
    cache: Array, pages: Array, token: int, chunk: int, first: int, seen: int, head_dim: int
) -> Array:
    """float32 [heads, positions, head_dim]: the positions first … seen - 1 that a chunk holds."""
    page, _ = place(pages, token, chunk * CHUNK)
    held = slice(max(first - chunk * CHUNK, 0), min(seen - chunk * CHUNK, CHUNK))
    return decoded(cache[page, :, held], head_dim)


def first_seen(seen: int, window: int) -> int:
    """The first position that a token sees, `seen` being the one behind its own."""
    return max(seen - window, 0) if window else 0


def _chunks(seen: int, window: int) -> range:
    """The chunks that hold what a token sees."""
    return range(first_seen(seen, window) // CHUNK, chunk_count(seen))


def _scores(query: Array, keys: Array, scale: float, softcap: float) -> Array:
    scores = np.einsum("hgd,hpd->hgp", query, keys) * np.float32(scale)
    capped = np.tanh(scores / np.float32(softcap)) * np.float32(softcap) if softcap else scores
    return np.asarray(capped)


def _sinks(types: Sequence[TensorType], heads: int) -> None:
    need(len(types) < 2, f"{len(types)} operands too many")
    for sinks in types:
        need(sinks == tensor("f32", heads), f"the sinks must be f32[{heads}], not {sinks}")


def _infer_attention(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q, keys, values, pos, pages = types
    need(float(attrs["softcap"]) >= 0, f"a cap of {attrs['softcap']}")
    tokens, width = activation(q, "the query")
    need(keys == values, f"keys and values differ: {keys} and {values}")
    heads, kv_heads = int(attrs["heads"]), keys.shape[1]
    need(width % heads == 0, f"width {width} is not {heads} heads")
    need_cache(keys, pages, tokens, width // heads)
    need(heads % kv_heads == 0, f"{heads} heads do not divide over {kv_heads} key heads")
    positions(pos, tokens)
    need(pos.shape[0] == pages.shape[0], f"{pos} and {pages} differ in sequences")
    return q


def _infer_prompt(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q = _infer_attention(types[:5], attrs)
    need(types[3].shape[0] == 1, f"attention takes one sequence, not {types[3].shape[0]}")
    _sinks(types[5:], int(attrs["heads"]))
    return q


def _attention(
    q: Array,
    keys: Array,
    values: Array,
    pos: Array,
    pages: Array,
    *sinks: Array,
    heads: int,
    scale: float,
    softcap: float,
    window: int,
) -> Array:
    """Causal attention over the positions that each token sees, softmax in float32."""
    tokens, width = q.shape
    kv_heads, head = keys.shape[1], width // heads
    out = np.empty((tokens, heads, head), np.float32)
    for t in range(tokens):
        seen = int(pos[0]) + t + 1
        k, v = (
            np.concatenate(
                [
                    _chunk(cache, pages, 0, chunk, first_seen(seen, window), seen, head)
                    for chunk in _chunks(seen, window)
                ],
                axis=1,
            )
            for cache in (keys, values)
        )
        query = asked(q[t].reshape(kv_heads, heads // kv_heads, head), keys)
        scores = _scores(query, k, scale, softcap)
        for sink in sinks:
            scores = np.concatenate([scores, sink.reshape(*scores.shape[:2], 1)], axis=-1)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (scores / scores.sum(axis=-1, keepdims=True))[..., : k.shape[1]]
        out[t] = np.einsum("hgp,hpd->hgd", weights, v).reshape(heads, head)
    return out.reshape(tokens, width)


def _infer_attend(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q = _infer_attention(types, attrs)
    pages, heads = types[4], int(attrs["heads"])
    return tensor("f32", q.shape[0], pages.shape[1] * (q.shape[1] + 2 * heads))


def _attend(
    q: Array,
    keys: Array,
    values: Array,
    pos: Array,
    pages: Array,
    *,
    heads: int,
    scale: float,
    softcap: float,
    window: int,
) -> Array:
    """Each chunk of positions by itself, [T, heads, chunks, head_dim + 2].

    The last dimension is the sum of the chunk's values weighted by exp(score - largest), then the
    largest score, then the sum of weights. Chunks of which a token sees nothing are not written.
    """
    tokens, kv_heads, head = len(q), keys.shape[1], q.shape[1] // heads
    out = np.full((tokens, heads, pages.shape[1], head + 2), np.nan, np.float32)
    at = positions_of(pos, tokens)
    for t in range(tokens):
        query, seen = asked(q[t].reshape(kv_heads, heads // kv_heads, head), keys), int(at[t]) + 1
        for chunk in _chunks(seen, window):
            first = first_seen(seen, window)
            k, v = (_chunk(cache, pages, t, chunk, first, seen, head) for cache in (keys, values))
            scores = _scores(query, k, scale, softcap)
            largest = scores.max(axis=-1, keepdims=True)
            weights = np.exp(scores - largest)
            out[t, :, chunk, :head] = np.einsum("hgp,hpd->hgd", weights, v).reshape(heads, head)
            out[t, :, chunk, head] = largest.reshape(heads)
            out[t, :, chunk, head + 1] = weights.sum(axis=-1).reshape(heads)
    return out.reshape(tokens, -1)


def _infer_combine(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    partials, pos, *sinks = types
    tokens, width = activation(partials, "the input")
    heads, head = int(attrs["heads"]), int(attrs["head_dim"])
    need(width % (heads * (head + 2)) == 0, f"width {width} is not chunks of {heads} heads")
    positions(pos, tokens)
    _sinks(sinks, heads)
    return tensor("f32", tokens, heads * head)


def _combine(
    partials: Array, pos: Array, *sinks: Array, heads: int, head_dim: int, window: int
) -> Array:
    """The attention of all chunks that are seen: chunks weigh exp(largest) × their sum."""
    out = np.empty((len(partials), heads, head_dim), np.float32)
    at = positions_of(pos, len(partials))
    for t, of_token in enumerate(partials.reshape(len(partials), heads, -1, head_dim + 2)):
        seen = _chunks(int(at[t]) + 1, window)
        chunks = of_token[:, seen.start : seen.stop]
        for sink in sinks:
            alone = np.zeros((heads, 1, head_dim + 2), np.float32)
            alone[..., -2], alone[..., -1] = sink[:, None], 1
            chunks = np.concatenate([chunks, alone], axis=1)
        values, largest, total = chunks[..., :-2], chunks[..., -2], chunks[..., -1]
        factors = np.exp(largest - largest.max(axis=-1, keepdims=True))
        mean = np.einsum("hc,hcd->hd", factors, values)
        out[t] = mean / np.sum(factors * total, -1, keepdims=True)
    return out.reshape(len(out), -1)


OPS = (
    OpDef(
        "attention",
        "heads",
        _infer_prompt,
        _attention,
        ATTRS,
        grain=one,
        scalars={"window": "i32"},
    ),
    OpDef(
        "attend",
        "shares",
        _infer_attend,
        _attend,
        ATTRS,
        grain=one,
        scalars={"window": "i32"},
        leaves_rest=True,
    ),
    OpDef(
        "combine",
        "tokens",
        _infer_combine,
        _combine,
        ("head_dim", "heads", "window"),
        aligned=(0,),
        grain=one,
        scalars={"window": "i32"},
    ),
)
