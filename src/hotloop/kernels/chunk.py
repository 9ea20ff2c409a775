"""Attention over one chunk of positions: what the kernels of attention have in common.

A softmax over all positions is put together from chunks of `CHUNK`: each leaves its largest score,
its sum of exp(score - largest) and the values weighted by that, and chunks are merged in order. A
chunk begins at a multiple of `CHUNK`, so what is added to what depends on positions alone, not on
who computes which chunk or which queries go together.

Keys are read `LANES` positions at a time, one per lane, so that a score is a sum over d in one
lane; values are read along d, so that an output is a sum over positions in one lane. Several
queries share what is read: that many as the registers can hold the sums of.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

from hotloop.ir.ops import CHUNK
from hotloop.kernels.approx import exp, tanh
from hotloop.kernels.cache import LANES
from hotloop.kernels.stream import FAR, prefetch_ahead
from hotloop.kernels.tile import Tile
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    as_value,
    constant,
    current,
    f32,
    fma,
    i64,
    if_,
    loop,
    max_lanes,
    maximum,
    minimum,
    prefetch,
    select,
    strip,
    sum_lanes,
    u8,
    vector,
    vectors_of,
    zeros,
)

VALUES_BLOCK = 64
"""Positions whose values are read again for other queries, so from the L1 cache."""
WEIGH_BYTES = 8
"""Bytes of values that are asked for per weight that is computed: memory never waits for exp."""
VECTORS = 4
"""Vectors of keys or values that are read side by side, at most."""


def partial_floats(dim: int) -> int:
    """Floats of a chunk's result for one query: weighted values, largest score, sum of weights."""
    return dim + 2


def registers() -> int:
    """Vector registers, counted in vectors of `LANES` floats."""
    return 32 if "avx512f" in current().module.target.features else 8


@dataclass
class Chunk:
    """Some queries of one key head, and the positions of one chunk that they see."""

    q: Pointer
    """f32[queries][dim]."""
    keys: Pointer
    """[positions / LANES][dim][LANES]."""
    values: Pointer
    """[positions][dim]."""
    scores: Pointer
    """f32[queries][CHUNK], in scratch."""
    out: Pointer
    """f32[queries][partial_floats(dim)], `out_stride` floats from one query to the next."""
    out_stride: int
    queries: int | Value
    """How many; if a value, q, scores and out may be touched up to a multiple of `together`."""
    together: int
    """Queries whose sums share the registers."""
    positions: Value
    """Up to the last that any query sees: 1 … CHUNK, counted from the first of the chunk."""
    before: Value
    """Those before the first that any query sees: 0 … CHUNK - 1."""
    windowed: bool
    """Whether queries may begin to see at different positions."""
    dim: int
    scale: float
    softcap: float
    streamed: bool
    """Whether keys and values come from memory, where they are asked for ahead of their use."""
    seen: Callable[[Value], Value]
    """Positions of the chunk up to the last that a query sees: 0 … CHUNK."""
    start: Callable[[Value], Value]
    """Positions before the first that it sees: 0 … CHUNK."""

    @property
    def vectors(self) -> int:
        return max(1, min(VECTORS, (registers() - 2) // self.together))

    def attend(self) -> None:
        """Compute `out`; of a query that sees nothing, it means nothing."""
        self._score()
        for query in loop(self.queries):
            self._weigh(query)
        self._add_all_values()

    def _add_all_values(self) -> None:
        for start in loop(self.positions, self.before // VALUES_BLOCK * VALUES_BLOCK, VALUES_BLOCK):
            for d, width in parts(self.dim, self.vectors * LANES):
                for query, queries in self._query_parts():
                    self._add_values(start, d, vectors_of(width, LANES), query, queries)

    def _query_parts(self) -> Iterator[tuple[Value, int]]:
        if isinstance(self.queries, int):
            yield from parts(self.queries, self.together)
            return
        for query in loop(self.queries, step=self.together):
            yield query, self.together

    def _score(self) -> None:
        """q · k · scale for all positions of the blocks of lanes in which any is seen."""
        first = self.before // LANES
        blocks = (self.positions + (LANES - 1)) // LANES
        whole = first + (blocks - first) // self.vectors * self.vectors
        for block in loop(whole, first, self.vectors):
            for query, queries in self._query_parts():
                self._score_blocks(block, self.vectors, query, queries)
        for block in loop(blocks, whole):
            for query, queries in self._query_parts():
                self._score_blocks(block, 1, query, queries)

    def _score_blocks(self, first: Value, blocks: int, query: Value, queries: int) -> None:
        q = self.q.at(query * self.dim)
        sums = [[Var(zeros(f32 * LANES)) for _ in range(blocks)] for _ in range(queries)]
        keys = self.keys.at(first * (self.dim * LANES))
        line = LANES * keys.element.size
        for d, few in parts(self.dim, 2):
            for block in range(blocks if self.streamed else 0):
                ahead = keys.cast(u8).at((d + block * self.dim) * line)
                prefetch_ahead(ahead, few * line)
            for i in range(few):
                at = [(d + (i + block * self.dim)) * LANES for block in range(blocks)]
                ks = [keys.load(where, LANES).to(f32) for where in at]
                for h in range(queries):
                    factor = q.load(d + i + h * self.dim).broadcast(LANES)
                    for block, k in enumerate(ks):
                        sums[h][block].set(fma(k, factor, sums[h][block]))
        for h in range(queries):
            for block in range(blocks):
                at_score = (query + h) * CHUNK + (first + block) * LANES
                self.scores.store(self._capped(sums[h][block] * self.scale), at_score)

    def _capped(self, scores: Value) -> Value:
        return tanh(scores / self.softcap) * self.softcap if self.softcap else scores

    def _weigh(self, query: Value) -> None:
        """Replace scores by exp(score - largest), note largest and sum, and clear the values.

        The last lanes may lie beyond what is seen, where the cache may hold anything, and the
        first ones before it.
        """
        seen, start = self.seen(query), self.start(query)
        scores, out = self.scores.at(query * CHUNK), self.out.at(query * self.out_stride)
        first, last = start // LANES * LANES, (seen - 1) // LANES * LANES
        lanes_of = vector(range(LANES), i64)
        with if_(seen > start):
            inside = lanes_of < seen - last
            scores.store(select(inside, scores.load(last, LANES), float("-inf")), last)
            inside = lanes_of >= start - first
            scores.store(select(inside, scores.load(first, LANES), float("-inf")), first)
        largest = Var(constant(float("-inf"), f32 * LANES))
        for i in loop(seen, first, LANES):
            largest.set(maximum(scores.load(i, LANES), largest))
        top = max_lanes(largest)
        total = Var(zeros(f32 * LANES))
        for i in loop(seen, first, LANES):
            weights = exp(scores.load(i, LANES) - top)
            scores.store(weights, i)
            total += weights
            if self.streamed:  # the loop over values begins with what its own prefetch leaves out
                ahead = self.values.cast(u8).at((query * CHUNK + i) * WEIGH_BYTES + FAR)
                for line in range(0, WEIGH_BYTES * LANES, 64):
                    prefetch(ahead.at(line), locality=2)
        for i, lanes in strip(self.dim):
            out.store(zeros(f32 * lanes), i)
        out.store(top, self.dim)
        out.store(sum_lanes(total), self.dim + 1)

    def _add_values(
        self,
        start: Value,
        d: Value,
        vectors: list[tuple[int, int]],
        query: Value,
        queries: int,
    ) -> None:
        """Add a block of positions to the vectors from d on, for some queries.

        Between what each query sees for itself, early and late, come the positions that all see.
        """
        block = start + VALUES_BLOCK
        if isinstance(self.queries, int):
            stop = minimum(block, self.seen(query))
            first = maximum(start, self.start(query))
            self._add_positions(first, stop, d, vectors, query, queries)
            return
        each = [query + h for h in range(queries)]
        common = reduce(maximum, [maximum(start, self.start(one)) for one in each])
        end = reduce(minimum, [minimum(block, self.seen(one)) for one in each])
        if self.windowed:
            for one in loop(query + queries, query):
                first, stop = maximum(start, self.start(one)), minimum(block, self.seen(one))
                with if_(minimum(common, stop) > first):
                    self._add_positions(first, minimum(common, stop), d, vectors, one, 1)
        self._add_positions(common, end, d, vectors, query, queries)
        for one in loop(query + queries, query):
            stop = minimum(block, self.seen(one))
            with if_(stop > maximum(common, end)):
                self._add_positions(maximum(common, end), stop, d, vectors, one, 1)

    def _add_positions(
        self,
        start: Value,
        stop: Value,
        d: Value,
        vectors: list[tuple[int, int]],
        query: Value,
        queries: int,
    ) -> None:
        outs = [self.out.at((query + h) * self.out_stride + d) for h in range(queries)]
        sums = [[Var(out.load(at, lanes)) for at, lanes in vectors] for out in outs]
        weights = self.scores.at(query * CHUNK)
        for position in loop(stop, start):
            row = self.values.at(position * self.dim + d)
            if self.streamed:
                width = sum(lanes for _, lanes in vectors)
                prefetch_ahead(row.cast(u8), width * row.element.size)
            vs = [row.load(at, lanes).to(f32) for at, lanes in vectors]
            for h in range(queries):
                weight = weights.load(position + h * CHUNK)
                for n, v in enumerate(vs):
                    sums[h][n].set(fma(v, weight.broadcast(v.type.lanes), sums[h][n]))
        for out, totals in zip(outs, sums, strict=True):
            for (at, _), total in zip(vectors, totals, strict=True):
                out.store(total, at)


def merge(into: Pointer, chunk: Pointer, dim: int) -> None:
    """Add the next chunk's result to that of the chunks before it."""
    before, after = into.load(dim), chunk.load(dim)
    top = maximum(before, after)
    old, new = exp(before - top), exp(after - top)
    for i, lanes in strip(dim + 2, lanes=LANES):
        into.store(fma(chunk.load(i, lanes), _many(new, lanes), into.load(i, lanes) * old), i)
    into.store(top, dim)


def merge_sink(into: Pointer, sink: Value, dim: int) -> None:
    """Add a score that has a weight and no value."""
    before = into.load(dim)
    top = maximum(before, sink)
    old, new = exp(before - top), exp(sink - top)
    for i, lanes in strip(dim, lanes=LANES):
        into.store(into.load(i, lanes) * old, i)
    into.store(into.load(dim + 1) * old + new, dim + 1)
    into.store(top, dim)


def first_seen(tile: Tile, seen: Value) -> Value:
    """The first position that a token sees, `seen` being the one behind its own."""
    window = tile.scalar("window")
    return select(window > 0, maximum(seen - window, 0), 0)


def divide(out: Pointer, merged: Pointer, dim: int) -> None:
    """The weighted mean of the values: their sum over the sum of weights."""
    total = merged.load(dim + 1)
    for i, lanes in strip(dim, lanes=LANES):
        out.store(merged.load(i, lanes) / total, i)


def copy(into: Pointer, source: Pointer, floats: int | Value) -> None:
    """Copy elements, as float32."""
    for i, lanes in strip(floats, lanes=LANES):
        into.store(source.load(i, lanes).to(f32), i)


def parts(total: int, size: int) -> Iterator[tuple[Value, int]]:
    """Cut 0 … total into (start, length): a loop over parts of `size`, then the rest."""
    whole = total // size * size
    for start in loop(whole, step=size):
        yield start, size
    if whole < total:
        yield as_value(whole, i64), total - whole


def _many(value: Value, lanes: int) -> Value:
    return value.broadcast(lanes) if lanes else value
