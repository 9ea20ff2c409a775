"""attention: softmax(q · K · scale) · V over the cache, causal, for one (key head, token) pair.

All query heads of a key head go together, so keys and values stream from memory once. Keys are
read eight positions at a time, one per lane, so that a score is a sum over d in one lane; values
are read along d, so that an output is a sum over positions in one lane. Neither sum crosses lanes,
and each runs in one order, whatever else is computed beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hotloop.kernels.approx import exp
from hotloop.kernels.cache import LANES, element, key_offset
from hotloop.kernels.stream import prefetch_ahead
from hotloop.kernels.tile import OpSpec, Tile, kernel, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    as_value,
    constant,
    f32,
    fma,
    i32,
    i64,
    if_,
    loop,
    max_lanes,
    maximum,
    minimum,
    select,
    strip,
    sum_lanes,
    u8,
    vector,
    zeros,
)

REGISTERS = 16
"""Vector registers of AVX2: what the inner loops' sums and operands have to fit in."""

VALUES_BLOCK = 64
"""Positions whose values are read again for the next part of d, so from the L1 cache."""


def _scratch(spec: OpSpec) -> int:
    """The scores, f32[query heads of a key head][context], and a total for each of these heads."""
    kv_heads, context, _ = spec.operands[1].shape
    return int(spec.attr("heads")) // kv_heads * (context + 1) * 4


@dataclass
class _Head:
    """One key head with its query heads, for one token."""

    q: Pointer
    keys: Pointer
    values: Pointer
    out: Pointer
    scores: Pointer
    """f32[group][context], in scratch."""
    totals: Pointer
    """f32[group], in scratch."""
    seen: Value
    """Positions to attend to."""
    group: int
    """Query heads of the key head."""
    dim: int
    context: int
    scale: float

    @property
    def together(self) -> int:
        """Query heads whose sums share the registers: as few passes as possible, evenly filled."""
        passes = -(-self.group // 4)
        return -(-self.group // passes)

    @property
    def vectors(self) -> int:
        """Vectors of each query head that sum at a time; their operands need registers too."""
        return min(8, (REGISTERS - 1 - self.together) // self.together)


@kernel("attention", scratch=_scratch)
def attention(tile: Tile) -> None:
    q_type, cache, _, _ = tile.spec.operands
    kv_heads, context, dim = cache.shape
    tokens = q_type.shape[0]
    group = int(tile.spec.attr("heads")) // kv_heads
    q, keys, values, pos = tile.operands
    assert tile.result is not None
    for row in loop(tile.hi, tile.lo):
        kv_head, token = row // tokens, row % tokens
        with if_(token < tile.count):
            at = token * row_stride(q_type.shape[1]) + kv_head * (group * dim)
            head = _Head(
                q=q.cast(f32).at(at),
                keys=keys.cast(element(cache)).at(key_offset(cache, kv_head, as_value(0, i64))),
                values=values.cast(element(cache)).at(kv_head * (context * dim)),
                out=tile.result.cast(f32).at(at),
                scores=tile.scratch.cast(f32),
                totals=tile.scratch.cast(f32).at(group * context),
                seen=pos.cast(i32).load().to(i64) + token + 1,
                group=group,
                dim=dim,
                context=context,
                scale=float(tile.spec.attr("scale")),
            )
            _score(head)
            _hide_unseen(head)
            _weigh(head)
            _sum_values(head)


def _score(head: _Head) -> None:
    """q · k · scale for all positions up to the end of the last block of eight."""
    blocks = (head.seen + (LANES - 1)) // LANES
    whole = blocks // head.vectors * head.vectors
    for block in loop(whole, step=head.vectors):
        _score_blocks(head, block, head.vectors)
    for block in loop(blocks, whole):
        _score_blocks(head, block, 1)


def _score_blocks(head: _Head, first: Value, blocks: int) -> None:
    for query, queries in _parts(head.group, head.together):
        q = head.q.at(query * head.dim)
        sums = [[Var(zeros(f32 * LANES)) for _ in range(blocks)] for _ in range(queries)]
        keys = head.keys.at(first * (head.dim * LANES))
        step = blocks * LANES * keys.element.size
        for d, few in _parts(head.dim, 2):
            prefetch_ahead(keys.cast(u8).at(d * step), few * step)
            for i in range(few):
                factors = [q.load(d + i + h * head.dim).broadcast(LANES) for h in range(queries)]
                for block in range(blocks):
                    k = keys.load((d + (i + block * head.dim)) * LANES, LANES).to(f32)
                    for h in range(queries):
                        sums[h][block].set(fma(k, factors[h], sums[h][block]))
        for h in range(queries):
            for block in range(blocks):
                at = (query + h) * head.context + (first + block) * LANES
                head.scores.store(sums[h][block] * head.scale, at)


def _hide_unseen(head: _Head) -> None:
    """The last block may reach beyond what is seen, where the cache may hold anything."""
    last = (head.seen - 1) // LANES * LANES
    seen = vector(range(LANES), i64) < head.seen - last
    for h in loop(head.group):
        at = h * head.context + last
        head.scores.store(select(seen, head.scores.load(at, LANES), float("-inf")), at)


def _weigh(head: _Head) -> None:
    """Replace scores by exp(score - largest), and keep their sums."""
    whole = (head.seen + (LANES - 1)) // LANES * LANES
    for h in loop(head.group):
        scores = head.scores.at(h * head.context)
        largest = Var(constant(float("-inf"), f32 * LANES))
        for i in loop(whole, step=LANES):
            largest.set(maximum(scores.load(i, LANES), largest))
        top = max_lanes(largest)
        total = Var(zeros(f32 * LANES))
        for i in loop(whole, step=LANES):
            weights = exp(scores.load(i, LANES) - top)
            scores.store(weights, i)
            total += weights
        head.totals.store(sum_lanes(total), h)


def _sum_values(head: _Head) -> None:
    """The weighted sum of the values seen, into the result, divided by the sum of weights."""
    for i, lanes in strip(head.group * head.dim):
        head.out.store(zeros(f32 * lanes), i)
    for start in loop(head.seen, step=VALUES_BLOCK):
        stop = minimum(start + VALUES_BLOCK, head.seen)
        for d, width in _parts(head.dim, head.vectors * LANES):
            for query, queries in _parts(head.group, head.together):
                _add_values(head, start, stop, d, _vectors(width), query, queries)
    for h in loop(head.group):
        total = head.totals.load(h)
        out = head.out.at(h * head.dim)
        for i, lanes in strip(head.dim):
            out.store(out.load(i, lanes) / total, i)


def _add_values(
    head: _Head,
    start: Value,
    stop: Value,
    d: Value,
    vectors: list[tuple[int, int]],
    query: Value,
    queries: int,
) -> None:
    """Add positions start … stop to the vectors from d on, for some query heads."""
    outs = [head.out.at((query + h) * head.dim + d) for h in range(queries)]
    sums = [[Var(out.load(at, lanes)) for at, lanes in vectors] for out in outs]
    scores = head.scores.at(query * head.context)
    for position in loop(stop, start):
        factors = [scores.load(position + h * head.context) for h in range(queries)]
        row = head.values.at(position * head.dim + d)
        prefetch_ahead(row.cast(u8), sum(lanes for _, lanes in vectors) * row.element.size)
        for n, (at, lanes) in enumerate(vectors):
            v = row.load(at, lanes).to(f32)
            for h in range(queries):
                sums[h][n].set(fma(v, factors[h].broadcast(lanes), sums[h][n]))
    for out, totals in zip(outs, sums, strict=True):
        for (at, _), total in zip(vectors, totals, strict=True):
            out.store(total, at)


def _parts(total: int, size: int) -> Iterator[tuple[Value, int]]:
    """Cut 0 … total into (start, length): a loop over parts of `size`, then the rest."""
    whole = total // size * size
    for start in loop(whole, step=size, rolled=True):
        yield start, size
    if whole < total:
        yield as_value(whole, i64), total - whole


def _vectors(width: int) -> list[tuple[int, int]]:
    """Cut `width` elements into vectors: (start, lanes), each at most eight lanes, none beyond."""
    cut, start = [], 0
    while start < width:
        lanes = min(LANES, 1 << (width - start).bit_length() - 1)
        cut.append((start, lanes))
        start += lanes
    return cut
