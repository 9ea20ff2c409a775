"""attention: softmax(q · K · scale) · V over the cache, causal, for the tokens of a prompt.

The queries of several tokens go together over the same chunk of positions, which is widened to
float32 once for all of them, unless it holds codes. A token gets the bits that `attend` and
`combine` give it alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hotloop.ir.ops import CHUNK
from hotloop.kernels.cache import (
    LANES,
    element,
    head_offset,
    page_of,
    position_of,
)
from hotloop.kernels.chunk import (
    Chunk,
    copy,
    divide,
    first_seen,
    merge,
    merge_sink,
    partial_floats,
    registers,
)
from hotloop.kernels.chunk_codes import CodedQueries, chunk_of_codes, code_bytes
from hotloop.kernels.tile import OpSpec, Tile, kernel, round_up, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    f32,
    if_,
    loop,
    maximum,
    minimum,
    select,
    while_,
)

NEVER = -(1 << 40)
"""Where a token that sees everything begins to see: before any chunk, whatever the token."""
TOKENS = 16
"""Tokens whose queries go together: what is widened serves all of them, and stays in L2."""
TOGETHER = 6
"""Queries whose sums share the registers, where there are 32 vectors; half as many in 8."""


@dataclass(frozen=True)
class _Scratch:
    """What lies where in scratch, in floats; where the cache holds codes, `codes` are the last."""

    group: int
    dim: int

    @property
    def queries(self) -> int:
        return round_up(TOKENS * self.group, TOGETHER)

    @property
    def scores(self) -> int:
        return self.queries * self.dim

    @property
    def merged(self) -> int:
        return self.scores + self.queries * CHUNK

    @property
    def partial(self) -> int:
        return self.merged + self.queries * partial_floats(self.dim)

    @property
    def codes(self) -> int:
        return round_up(self.partial + self.queries * partial_floats(self.dim), LANES)

    @property
    def keys(self) -> int:
        return self.codes

    @property
    def values(self) -> int:
        return self.keys + CHUNK * self.dim

    @property
    def widened(self) -> int:
        return self.values + CHUNK * self.dim


def _scratch(spec: OpSpec) -> _Scratch:
    heads, kv_heads = int(spec.attr("heads")), spec.operands[1].shape[1]
    return _Scratch(heads // kv_heads, spec.operands[0].shape[1] // heads)


def _scratch_bytes(spec: OpSpec) -> int:
    place = _scratch(spec)
    if spec.operands[1].format.name == "i8":
        return place.codes * 4 + code_bytes(place.queries, place.dim)
    return place.widened * 4


@kernel("attention", scratch=_scratch_bytes)
def attention(tile: Tile) -> None:
    tokens = tile.spec.operands[0].shape[0]
    row = Var(tile.lo)
    for _ in while_(lambda: row < tile.hi):
        kv_head, token = row // tokens, row % tokens
        few = minimum(minimum(tile.hi - row, tokens - token), TOKENS)
        present = minimum(few, tile.count - token)
        with if_(present > 0):
            _attend(tile, kv_head, token, present)
        row.set(row + few)


def _attend(tile: Tile, kv_head: Value, token: Value, tokens: Value) -> None:
    """Some tokens and one key head, chunk after chunk."""
    spec = tile.spec
    q_type, cache, pos_type, pages_type = (spec.operands[i] for i in (0, 1, 3, 4))
    place = _scratch(spec)
    dim, group, stride = place.dim, place.group, row_stride(q_type.shape[1])
    scratch = tile.scratch.cast(f32)
    q, keys, values, pos, pages, *sinks = tile.operands
    assert tile.result is not None
    at = token * stride + kv_head * (group * dim)
    for t in loop(tokens):
        copy(scratch.at(t * (group * dim)), q.cast(f32).at(at + t * stride), group * dim)
    seen = position_of(pos, pos_type, token) + 1
    longest = seen + tokens - 1
    queries = tokens * group
    coded = CodedQueries(scratch.at(place.codes), place.queries, dim)
    if cache.format.name == "i8":
        coded.encode(scratch, queries)
    window = tile.scalar("window")
    start = select(window > 0, seen - window, NEVER)
    for first in loop(longest, first_seen(tile, seen) // CHUNK * CHUNK, CHUNK):
        positions = minimum(longest - first, CHUNK)
        head = head_offset(cache, page_of(pages, pages_type, token, first // CHUNK), kv_head)
        stored = [pointer.cast(element(cache)).at(head) for pointer in (keys, values)]
        make: Callable[..., Chunk] = Chunk
        if cache.format.name == "i8":
            make = chunk_of_codes(coded, stored[0], stored[1], cache.shape[2])
        elif cache.format.name != "f32":
            blocks = (positions + (LANES - 1)) // LANES
            widened = [scratch.at(where) for where in (place.keys, place.values)]
            for into, source in zip(widened, stored, strict=True):
                copy(into, source, blocks * (LANES * dim))
            stored = widened
        make(
            q=scratch,
            keys=stored[0],
            values=stored[1],
            scores=scratch.at(place.scores),
            out=scratch.at(place.partial),
            out_stride=partial_floats(dim),
            queries=queries,
            together=TOGETHER if registers() > 8 else TOGETHER // 2,
            positions=positions,
            before=maximum(start - first, 0),
            windowed=dict(spec.attrs).get("window") != 0,
            dim=dim,
            scale=float(spec.attr("scale")),
            softcap=float(spec.attr("softcap")),
            streamed=False,
            # Each token sees one position more than the one before it.
            seen=lambda query, first=first: _inside(seen - first + query // group),
            start=lambda query, first=first: _inside(start - first + query // group),
        ).attend()
        _merge(scratch, place, queries, seen - first, start - first, first)
    for query in loop(queries):
        merged = scratch.at(query * partial_floats(dim) + place.merged)
        for sink in sinks:
            head = kv_head * group + query % group
            merge_sink(merged, sink.cast(f32).load(head), dim)
        where = at + query // group * stride + query % group * dim
        divide(tile.result.cast(f32).at(where), merged, dim)


def _inside(position: Value) -> Value:
    """A position counted from the first of a chunk, held within it."""
    return minimum(maximum(position, 0), CHUNK)


def _merge(
    scratch: Pointer, place: _Scratch, queries: Value, seen: Value, start: Value, first: Value
) -> None:
    """Add the results of the chunk at position `first`, for the queries that see any of it.

    `seen` and `start` are where the first token stops and begins to see, counted from there. The
    first chunk that a query sees is not added, but stands, as in `combine`.
    """
    size = partial_floats(place.dim)
    for query in loop(queries):
        merged, chunk = (scratch.at(query * size + at) for at in (place.merged, place.partial))
        begins = start + query // place.group
        sees = (seen + query // place.group > 0) & (begins < CHUNK)
        stands = (begins >= 0) | first.equals(0)
        with if_(sees & stands):
            copy(merged, chunk, size)
        with if_(sees & ~stands):
            merge(merged, chunk, place.dim)
