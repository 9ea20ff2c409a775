"""Attention over one chunk of an i8 cache, in integers.

Queries get codes of 16 bit and a scale each, so do the weights of a chunk's values, and 16-bit
products with the cache's codes are summed two at a time. The integer sums are exact, whatever their
order: nothing here depends on which positions or queries go together. 16 bits, since nothing is
gained by fewer but speed that memory cannot feed: they add an error 250 times smaller than that of
the cache's codes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hotloop.ir.ops import CHUNK
from hotloop.ir.ops.cache import code_width, largest_query_code
from hotloop.kernels.approx import exp
from hotloop.kernels.cache_codes import LANES, codes_of, scale_for, scales_of
from hotloop.kernels.chunk import WEIGH_BYTES, Chunk, parts
from hotloop.kernels.stream import FAR, prefetch_ahead
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    constant,
    dot2_wide,
    f32,
    i16,
    i32,
    loop,
    max_lanes,
    maximum,
    prefetch,
    select,
    sum_lanes,
    u8,
    u32,
    vector,
    vectors_of,
    zeros,
)

PAIRS = 2 * LANES
LARGEST_WEIGHT = 32767
"""A sum over a chunk's values: 256 · 32,767 · 127 fits in 31 bits."""


def code_bytes(queries: int, dim: int) -> int:
    """Bytes of the codes of queries and of what else a `CodesChunk` keeps of each."""
    return queries * (code_width(dim) * 2 + 2 * f32.size)


@dataclass
class CodedQueries:
    """Queries as codes; `memory` is for `code_bytes(queries, dim)` bytes."""

    memory: Pointer
    queries: int
    dim: int

    @property
    def codes(self) -> Pointer:
        """i16[queries][code_width(dim)], zeros where a query has no element."""
        return self.memory.cast(i16)

    @property
    def scales(self) -> Pointer:
        """f32[queries]."""
        return self.codes.at(self.queries * code_width(self.dim)).cast(f32)

    @property
    def weight_scales(self) -> Pointer:
        """f32[queries]: of the codes of the chunk's weights."""
        return self.scales.at(self.queries)

    def encode(self, q: Pointer, queries: int | Value) -> None:
        """Take in `queries` queries, f32[queries][dim]."""
        cut, width = vectors_of(self.dim, LANES), code_width(self.dim)
        for query in loop(queries):
            vectors = [q.load(query * self.dim + at, lanes) for at, lanes in cut]
            scale = scale_for(vectors, largest_query_code(self.dim))
            self.scales.store(scale, query)
            codes = self.codes.at(query * width)
            codes.store(zeros(i16 * LANES), width - LANES)
            for (at, _), code in zip(cut, codes_of(vectors, scale), strict=True):
                codes.store(code.to(i16), at)


@dataclass
class CodesChunk(Chunk):
    """A chunk of codes: `keys` and `values` as `kernels.cache_codes` lays them out; `q` unused."""

    coded: CodedQueries
    key_scales: Pointer
    """f32[CHUNK], as far as positions are seen in whole `LANES`."""
    value_scales: Pointer

    @property
    def _width(self) -> int:
        return code_width(self.dim)

    def _score_blocks(self, first: Value, blocks: int, query: Value, queries: int) -> None:
        q = self.coded.codes.cast(i32).at(query * (self._width // 2))
        sums = [[Var(zeros(i32 * LANES)) for _ in range(blocks)] for _ in range(queries)]
        keys = self.keys.at(first * (self._width * LANES))
        for pair, few in parts(self._width // 2, 2):
            for block in range(blocks if self.streamed else 0):
                ahead = keys.at(pair * PAIRS + block * (self._width * LANES))
                prefetch_ahead(ahead.cast(u8), few * PAIRS)
            for i in range(few):
                at = [(pair + i) * PAIRS + b * (self._width * LANES) for b in range(blocks)]
                ks = [keys.load(where, PAIRS).to(i16) for where in at]
                for h in range(queries):
                    factor = _in_all_lanes(q.load(pair + (i + h * (self._width // 2))))
                    for block, k in enumerate(ks):
                        sums[h][block].set(dot2_wide(k, factor, sums[h][block]))
        for h in range(queries):
            factor = self.coded.scales.load(query + h) * self.scale
            for block in range(blocks):
                at_lane = (first + block) * LANES
                scales = self.key_scales.load(at_lane, LANES) * factor.broadcast(LANES)
                scores = self._capped(sums[h][block].to(f32) * scales)
                self.scores.store(scores, (query + h) * CHUNK + at_lane)

    def _weigh(self, query: Value) -> None:
        """Replace scores by the codes of weight × value's scale; note largest score and sum.

        The codes of what the query does not see, of all queries' positions, are zero.
        """
        scores, out = self.scores.at(query * CHUNK), self.out.at(query * self.out_stride)
        first, start = self.before // LANES * LANES, self.start(query)
        held = (self.seen(query) - start).to(u32)
        largest = Var(constant(float("-inf"), f32 * LANES))
        for i in loop(self.positions, first, LANES):
            inside = vector(range(LANES), u32) + (i - start).to(u32) < held  # of no sign: one test
            score = select(inside, scores.load(i, LANES), float("-inf"))
            scores.store(score, i)
            largest.set(maximum(score, largest))
        top = max_lanes(largest)
        total, most, nothing = (Var(zeros(f32 * LANES)) for _ in range(3))
        for i in loop(self.positions, first, LANES):
            weights = exp(scores.load(i, LANES) - top)
            total += weights
            # Of what is not seen, the scale may be anything.
            scaled = select(weights > 0.0, weights * self.value_scales.load(i, LANES), 0.0)
            scores.store(scaled, i)
            most.set(maximum(scaled, most))
            nothing += scaled * 0.0
            if self.streamed:  # the loop over values begins with what its own prefetch leaves out
                ahead = self.values.cast(u8).at((query * CHUNK + i) * WEIGH_BYTES + FAR)
                for line in range(0, WEIGH_BYTES * LANES, 64):
                    prefetch(ahead.at(line), locality=2)
        out.store(top, self.dim)
        out.store(sum_lanes(total), self.dim + 1)
        scale = max_lanes(most) / float(LARGEST_WEIGHT) + sum_lanes(nothing)
        self.coded.weight_scales.store(scale, query)
        codes = scores.cast(i16)  # in place: they take half as much
        for i in loop(self.positions, first, LANES):
            (code,) = codes_of([scores.load(i, LANES)], scale)
            codes.store(code.to(i16), i)

    def _add_all_values(self) -> None:
        first, last = self.before // 2, (self.positions + 1) // 2
        for d, width in parts(self.dim, self.vectors * LANES):
            for query, queries in self._query_parts():
                self._add_pairs(first, last, d, width, query, queries)

    def _add_pairs(
        self, first: Value, last: Value, d: Value, width: int, query: Value, queries: int
    ) -> None:
        """Elements d … d + width of the values, two positions at a time, for some queries."""
        vectors = range(code_width(width) // LANES)
        sums = [[Var(zeros(i32 * LANES)) for _ in vectors] for _ in range(queries)]
        weights = self.scores.cast(i32).at(query * CHUNK)
        for pair in loop(last, first):
            row = self.values.at((pair * self._width + d) * 2)
            if self.streamed:
                prefetch_ahead(row.cast(u8), len(vectors) * PAIRS)
            vs = [row.load(n * PAIRS, PAIRS).to(i16) for n in vectors]
            for h in range(queries):
                factor = _in_all_lanes(weights.load(pair + h * CHUNK))
                for n, v in enumerate(vs):
                    sums[h][n].set(dot2_wide(v, factor, sums[h][n]))
        for h, totals in enumerate(sums):
            scale = self.coded.weight_scales.load(query + h)
            out = self.out.at((query + h) * self.out_stride + d)
            for at, lanes in vectors_of(width, LANES):
                inside = list(range(at % LANES, at % LANES + lanes))
                total = totals[at // LANES].to(f32).shuffle(inside)
                out.store(total * scale.broadcast(lanes), at)


def chunk_of_codes(
    coded: CodedQueries, keys: Pointer, values: Pointer, page: int
) -> Callable[..., Chunk]:
    """What makes a `CodesChunk` of the fields of a `Chunk`: for a head in a page of `page`."""
    key_scales, value_scales = (scales_of(head, page, coded.dim) for head in (keys, values))
    return partial(CodesChunk, coded=coded, key_scales=key_scales, value_scales=value_scales)


def _in_all_lanes(pair: Value) -> Value:
    """Two i16 next to each other, as many times as there are pairs in a vector."""
    return pair.broadcast(LANES).bitcast(i16 * PAIRS)
