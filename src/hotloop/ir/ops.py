"""The ops: signature, meaning in NumPy, and how each may be cut into tiles.

T is the number of tokens of a step. `pos` is the position of the first of them, so row t is at
position pos + t. Meanings compute in float32 and are the oracle of the compiled kernels.

An op's result is computed in *tiles* of rows. What a row is, and which part of each operand a tile
needs, is what the pipeline pass asks before it lets two ops share a stage:

- `features`: a row is an element of the last dimension, for all T tokens (linear, add, …);
- `heads`: a row is one (key-value head, token) pair (attention);
- `shares`: a row is an equal share of the work that the position asks for (attend);
- `tokens`: a row is one token's whole vector (norms, quantise, embed);
- `one`: the op is a single tile (sampling).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.graph import Attr
from hotloop.ir.sample import sample
from hotloop.ir.types import TensorType, tensor

Array = NDArray[Any]
Attrs = Mapping[str, Attr]
Rows = Literal["features", "heads", "shares", "tokens", "one"]

#: Rows of a `features` tile come in groups of this many, one per vector lane.
GROUP = 8
#: Positions of a chunk: attention sums over each chunk by itself, then over the chunks in order.
CHUNK = 256
#: Rows of `attend`, where there is work for as many.
SHARES = 32


class OpTypeError(ValueError):
    """Operands that do not fit the op; the text says which and why."""


@dataclass(frozen=True)
class OpDef:
    """What hotloop knows of an op.

    `infer` gives the result's type (None where the op only writes state) or raises `OpTypeError`.
    `meaning` takes the operands as arrays (weights as float32) and the attributes; it returns the
    result, and writes state operands in place. `aligned` are the operands of which a tile needs
    only the rows that it computes, where an op with the same kind of rows makes them; `writes` the
    state operands it writes. `grain` is the smallest number of rows that a tile may hold.
    """

    name: str
    rows: Rows
    infer: Callable[[Sequence[TensorType], Attrs], TensorType | None]
    meaning: Callable[..., Array | None]
    attrs: tuple[str, ...] = ()
    aligned: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    grain: Callable[[Attrs], int] = lambda attrs: GROUP
    starts_kernel: bool = False
    """Its result leaves the model (a token): fusion does not cross it."""
    leaves_rest: bool = False
    """Where its meaning gives NaN, the result is not written, and nothing may depend on it."""


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise OpTypeError(text)


def _activation(type: TensorType, what: str) -> tuple[int, int]:
    _need(
        type.format.name == "f32" and len(type.shape) == 2,
        f"{what} must be f32[T,N], not {type}",
    )
    return type.shape[0], type.shape[1]


def _position(type: TensorType) -> None:
    _need(type == tensor("i32", 1), f"a position must be i32[1], not {type}")


# embed -------------------------------------------------------------------------------------------


def _infer_embed(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    tokens, table = types
    _need(
        tokens.format.name == "i32" and len(tokens.shape) == 1, f"tokens must be i32[T]: {tokens}"
    )
    _need(len(table.shape) == 2, f"the table must have two dimensions, not {table}")
    return tensor("f32", tokens.shape[0], table.shape[1])


def _embed(tokens: Array, table: Array) -> Array:
    return np.asarray(table[tokens], dtype=np.float32)


# rms_norm ----------------------------------------------------------------------------------------


def _infer_rms_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight = types
    _, width = _activation(x, "the input")
    _need(weight == tensor("f32", width), f"the weight must be f32[{width}], not {weight}")
    return x


def _rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(x * scale * weight, dtype=np.float32)


# quantise ----------------------------------------------------------------------------------------


def _infer_quantise(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (x,) = types
    tokens, width = _activation(x, "the input")
    _need(width % 32 == 0, f"8-bit activations need a width divisible by 32, not {width}")
    return tensor("q8", tokens, width)


def _quantise(x: Array) -> Array:
    """Round to 8 bit, a scale per 32: the values that the integer dot products see."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    normal = scale >= np.float32(2.0**-126)  # below, the inverse is infinite: all become zero
    inverse = np.where(normal, 1, 0) / np.where(normal, scale, np.float32(1))
    rounded = np.rint(blocks * inverse.astype(np.float32)) * scale
    return np.asarray(rounded.reshape(x.shape), dtype=np.float32)


# linear ------------------------------------------------------------------------------------------


def _infer_linear(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight = types
    _need(x.format.name in ("f32", "q8") and len(x.shape) == 2, f"the input must be [T,K], not {x}")
    _need(len(weight.shape) == 2, f"the weight must be [N,K], not {weight}")
    _need(
        x.shape[1] == weight.shape[1],
        f"the input has {x.shape[1]} columns and the weight {weight.shape[1]}",
    )
    return tensor("f32", x.shape[0], weight.shape[0])


def _linear(x: Array, weight: Array) -> Array:
    return np.asarray(x @ weight.T, dtype=np.float32)


# rope --------------------------------------------------------------------------------------------


def _infer_rope(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, pos, table = types
    _, width = _activation(x, "the input")
    _position(pos)
    head = int(attrs["head_dim"])
    _need(head % 2 == 0 and width % head == 0, f"width {width} is not whole heads of {head}")
    _need(
        table.format.name == "f32" and table.shape[1:] == (head,),
        f"the table must be f32[context,{head}], not {table}",
    )
    _need(
        attrs["pairing"] in ("interleaved", "half"),
        f"pairing must be interleaved or half, not {attrs['pairing']}",
    )
    return x


def _rope(x: Array, pos: Array, table: Array, *, head_dim: int, pairing: str) -> Array:
    """Rotate pairs of each head: elements (2i, 2i+1) if interleaved, (i, i + half) if half.

    Row p of the table holds cos of the head_dim/2 angles of position p, then their sin.
    """
    tokens, width = x.shape
    half = head_dim // 2
    rows = table[int(pos[0]) : int(pos[0]) + tokens]
    cos, sin = rows[:, None, :half], rows[:, None, half:]
    heads = x.reshape(tokens, width // head_dim, head_dim)
    if pairing == "interleaved":
        a, b = heads[..., 0::2], heads[..., 1::2]
        out = np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
    else:
        a, b = heads[..., :half], heads[..., half:]
        out = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return np.asarray(out.reshape(tokens, width), dtype=np.float32)


# store_keys, store_values ------------------------------------------------------------------------


def _infer_store(types: Sequence[TensorType], attrs: Attrs) -> None:
    cache, x, pos = types
    _need(
        cache.format.name in ("f16", "f32") and len(cache.shape) == 3,
        f"a cache must be f16 or f32 [heads,context,head_dim], not {cache}",
    )
    _, width = _activation(x, "the input")
    heads, _, head = cache.shape
    _need(width == heads * head, f"width {width} is not {heads} heads of {head}")
    _position(pos)


def _store(cache: Array, x: Array, pos: Array, *, head_dim: int) -> None:
    heads, _, head = cache.shape
    at = int(pos[0])
    rows = x.reshape(x.shape[0], heads, head).transpose(1, 0, 2)
    cache[:, at : at + x.shape[0]] = rows


# attention ---------------------------------------------------------------------------------------


def _infer_attention(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q, keys, values, pos = types
    _, width = _activation(q, "the query")
    _need(keys == values, f"keys and values differ: {keys} and {values}")
    heads, head = int(attrs["heads"]), keys.shape[2]
    _need(width == heads * head, f"width {width} is not {heads} heads of {head}")
    _need(heads % keys.shape[0] == 0, f"{heads} heads do not divide over {keys.shape[0]} key heads")
    _position(pos)
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


# attend, combine ---------------------------------------------------------------------------------


def chunk_count(context: int) -> int:
    return -(-context // CHUNK)


def _infer_attend(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q = _infer_attention(types, attrs)
    _, context, head = types[1].shape
    _need(q.shape[0] == 1, f"attend takes one token, not {q.shape[0]}")
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
    tokens, width = _activation(partials, "the input")
    heads, head = int(attrs["heads"]), int(attrs["head_dim"])
    _need(tokens == 1, f"combine takes one token, not {tokens}")
    _need(width % (heads * (head + 2)) == 0, f"width {width} is not chunks of {heads} heads")
    _position(pos)
    return tensor("f32", 1, heads * head)


def _combine(partials: Array, pos: Array, *, heads: int, head_dim: int) -> Array:
    """The attention of all chunks up to the position: chunks weigh exp(largest) × their sum."""
    chunks = partials.reshape(heads, -1, head_dim + 2)[:, : chunk_count(int(pos[0]) + 1)]
    values, largest, total = chunks[..., :-2], chunks[..., -2], chunks[..., -1]
    factors = np.exp(largest - largest.max(axis=-1, keepdims=True))
    out = np.einsum("hc,hcd->hd", factors, values) / np.sum(factors * total, -1, keepdims=True)
    return np.asarray(out.reshape(1, -1), dtype=np.float32)


# swiglu, add -------------------------------------------------------------------------------------


def _infer_same(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = types
    _activation(a, "the first operand")
    _need(a == b, f"operands differ: {a} and {b}")
    return a


def _swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) × up (Shazeer, 2020, arXiv 2002.05202)."""
    with np.errstate(over="ignore"):
        return np.asarray(gate / (1 + np.exp(-gate)) * up, dtype=np.float32)


def _add(a: Array, b: Array) -> Array:
    return np.asarray(a + b, dtype=np.float32)


# sample, emit, advance ---------------------------------------------------------------------------


def _infer_sample(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    logits, ring, pos, control = types
    tokens, _ = _activation(logits, "the logits")
    _need(tokens == 1, f"sampling takes one row of logits, not {tokens}")
    _ring(ring)
    _position(pos)
    _control(control)
    return tensor("i32", 1)


def _infer_emit(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    token, ring, pos, control = types
    _need(token == tensor("i32", 1), f"a token must be i32[1], not {token}")
    _ring(ring)
    _position(pos)
    _control(control)
    return tensor("i32", 1)


def _ring(type: TensorType) -> None:
    _need(
        type.format.name == "i32" and len(type.shape) == 1,
        f"the token ring must be i32[capacity], not {type}",
    )


def _control(type: TensorType) -> None:
    _need(type == tensor("control", 1), f"the control block must be control[1], not {type}")


def _emit(token: Array, ring: Array, pos: Array, control: Array) -> Array:
    """Publish the token for position pos + 1, and say whether the generation ends with it.

    The ring is as long as the context, so a launch never overtakes its reader.
    """
    at, c = int(pos[0]) + 1, control[0]
    ring[at] = token[0]
    c["published"] = at + 1
    if token[0] in c["stop_ids"][: int(c["stop_count"])]:
        c["finish"] = 2
    elif at >= c["last_pos"]:
        c["finish"] = 1
    elif c["cancel"]:
        c["finish"] = 3
    else:
        return np.zeros(1, np.int32)
    return np.ones(1, np.int32)


def _infer_advance(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (pos,) = types
    _position(pos)
    return pos


def _advance(pos: Array) -> Array:
    return np.asarray(pos + 1, dtype=np.int32)


def _head_dim(attrs: Attrs) -> int:
    return int(attrs["head_dim"])


def _one(attrs: Attrs) -> int:
    return 1


OPS: Mapping[str, OpDef] = MappingProxyType(
    {
        op.name: op
        for op in (
            OpDef("embed", "tokens", _infer_embed, _embed, aligned=(0,), grain=_one),
            OpDef(
                "rms_norm",
                "tokens",
                _infer_rms_norm,
                _rms_norm,
                ("eps",),
                aligned=(0,),
                grain=_one,
            ),
            OpDef("quantise", "tokens", _infer_quantise, _quantise, aligned=(0,), grain=_one),
            OpDef("linear", "features", _infer_linear, _linear),
            OpDef(
                "rope",
                "features",
                _infer_rope,
                _rope,
                ("head_dim", "pairing"),
                aligned=(0,),
                grain=_head_dim,
            ),
            OpDef(
                "store_keys",
                "features",
                _infer_store,
                _store,
                ("head_dim",),
                aligned=(0, 1),
                writes=(0,),
                grain=_head_dim,
            ),
            OpDef(
                "store_values",
                "features",
                _infer_store,
                _store,
                ("head_dim",),
                aligned=(0, 1),
                writes=(0,),
                grain=_head_dim,
            ),
            OpDef(
                "attention",
                "heads",
                _infer_attention,
                _attention,
                ("heads", "scale"),
                grain=_one,
            ),
            OpDef(
                "attend",
                "shares",
                _infer_attend,
                _attend,
                ("heads", "scale"),
                grain=_one,
                leaves_rest=True,
            ),
            OpDef(
                "combine",
                "tokens",
                _infer_combine,
                _combine,
                ("heads", "head_dim"),
                aligned=(0,),
                grain=_one,
            ),
            OpDef("swiglu", "features", _infer_same, _swiglu, aligned=(0, 1)),
            OpDef("add", "features", _infer_same, _add, aligned=(0, 1)),
            OpDef(
                "sample",
                "one",
                _infer_sample,
                sample,
                aligned=(0, 1, 2, 3),
                grain=_one,
                starts_kernel=True,
            ),
            OpDef(
                "emit",
                "one",
                _infer_emit,
                _emit,
                aligned=(0, 1, 2, 3),
                writes=(1, 3),
                grain=_one,
            ),
            OpDef("advance", "one", _infer_advance, _advance, aligned=(0,), grain=_one),
        )
    }
)


def infer(name: str, operands: Sequence[TensorType], attrs: Attrs) -> TensorType | None:
    """The result type of an op; raises `OpTypeError` with the reason where there is none."""
    if name not in OPS:
        raise OpTypeError(f"there is no op {name}; known: {', '.join(OPS)}")
    op = OPS[name]
    if set(attrs) != set(op.attrs):
        raise OpTypeError(f"{name} takes the attributes {op.attrs}, not {tuple(attrs)}")
    try:
        return op.infer(operands, attrs)
    except OpTypeError as error:
        raise OpTypeError(f"{name}: {error}") from None
    except (ValueError, IndexError) as error:
        raise OpTypeError(f"{name}: wrong operands ({error})") from None


def row_count(name: str, operands: Sequence[TensorType], result: TensorType | None) -> int:
    """How many rows the whole op has, in the unit that its `rows` names."""
    kind = OPS[name].rows
    if kind == "one":
        return 1
    shape = (result or operands[1]).shape
    if kind == "heads":
        return operands[1].shape[0] * shape[0]
    if kind == "shares":
        kv_heads, context, _ = operands[1].shape
        return min(SHARES, kv_heads * chunk_count(context))
    return shape[0] if kind == "tokens" else shape[1]
