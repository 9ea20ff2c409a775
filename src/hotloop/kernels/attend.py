"""attend, combine: attention for few tokens, their keys split among the threads.

Each (token, key head, chunk of positions) is a piece of work, and the pieces that the positions
need are cut into as many equal shares as the op has rows: work is even at any position, and
whatever lies beyond costs nothing. All query heads of a key head go together, so keys and values
stream from memory once. Pieces follow each other as a page's heads do in memory, so that what is
asked for beyond the end of one is the beginning of the next.
"""

from collections.abc import Callable

from hotloop.ir.ops import CHUNK
from hotloop.kernels.cache import element, head_offset, page_of, position_of
from hotloop.kernels.chunk import (
    Chunk,
    copy,
    divide,
    first_seen,
    merge,
    merge_sink,
    partial_floats,
)
from hotloop.kernels.chunk_codes import CodedQueries, chunk_of_codes, code_bytes
from hotloop.kernels.tile import OpSpec, Tile, kernel, round_up, row_stride
from hotloop.lang import Value, Var, constant, f32, i64, loop, maximum, minimum


def _together(group: int) -> int:
    """Queries whose sums share the registers: as few passes as possible, evenly filled."""
    passes = -(-group // 4)
    return -(-group // passes)


def _group(spec: OpSpec) -> int:
    return int(spec.attr("heads")) // spec.operands[1].shape[1]


def _head_dim(spec: OpSpec) -> int:
    return spec.operands[0].shape[1] // int(spec.attr("heads"))


def _score_bytes(spec: OpSpec) -> int:
    return _group(spec) * CHUNK * 4


def _scratch_bytes(spec: OpSpec) -> int:
    codes = spec.operands[1].format.name == "i8"
    return _score_bytes(spec) + codes * code_bytes(_group(spec), _head_dim(spec))


@kernel("attend", scratch=_scratch_bytes)
def attend(tile: Tile) -> None:
    kv_heads, rows = tile.spec.operands[1].shape[1], tile.spec.rows
    work = Var(constant(0, i64))
    for token in loop(tile.count):
        work.set(work + _chunks(tile, token) * kv_heads)
    start, stop = tile.lo * work // rows, tile.hi * work // rows
    first = Var(constant(0, i64))  # the number of the token's first piece
    for token in loop(tile.count):
        chunks = _chunks(tile, token)
        last = first + chunks * kv_heads
        for piece in loop(minimum(stop, last), maximum(start, first)):
            number = piece - first
            chunk = _first_chunk(tile, token) + number // kv_heads
            _attend(tile, token, number % kv_heads, chunk)
        first.set(last)


def _seen(tile: Tile, token: Value) -> Value:
    return position_of(tile.operands[3], tile.spec.operands[3], token) + 1


def _first_chunk(tile: Tile, token: Value) -> Value:
    return first_seen(tile, _seen(tile, token)) // CHUNK


def _chunks(tile: Tile, token: Value) -> Value:
    """How many chunks hold what a token sees."""
    return (_seen(tile, token) + (CHUNK - 1)) // CHUNK - _first_chunk(tile, token)


def _attend(tile: Tile, token: Value, kv_head: Value, chunk: Value) -> None:
    """One piece."""
    q_type, cache, _, _, pages_type = tile.spec.operands
    dim, chunks, group = _head_dim(tile.spec), pages_type.shape[1], _group(tile.spec)
    q, _, _, _, pages = tile.operands
    assert tile.result is not None
    assert tile.spec.result is not None
    head = head_offset(cache, page_of(pages, pages_type, token, chunk), kv_head)
    keys, values = (pointer.cast(element(cache)).at(head) for pointer in tile.operands[1:3])
    queries = q.cast(f32).at(token * row_stride(q_type.shape[1]) + kv_head * (group * dim))
    make: Callable[..., Chunk] = Chunk
    if cache.format.name == "i8":
        coded = CodedQueries(tile.scratch.at(_score_bytes(tile.spec)), group, dim)
        coded.encode(queries, group)
        make = chunk_of_codes(coded, keys, values, cache.shape[2])
    stride = chunks * partial_floats(dim)
    out = tile.result.cast(f32).at(token * row_stride(tile.spec.result.shape[1]))
    positions = minimum(_seen(tile, token) - chunk * CHUNK, CHUNK)
    before = maximum(first_seen(tile, _seen(tile, token)) - chunk * CHUNK, 0)
    make(
        q=queries,
        keys=keys,
        values=values,
        scores=tile.scratch.cast(f32),
        out=out.at(kv_head * (group * stride) + chunk * partial_floats(dim)),
        out_stride=stride,
        queries=group,
        together=_together(group),
        positions=positions,
        before=before,
        windowed=False,
        dim=dim,
        scale=float(tile.spec.attr("scale")),
        softcap=float(tile.spec.attr("softcap")),
        streamed=True,
        seen=lambda query: positions,
        start=lambda query: before,
    ).attend()


@kernel("combine", scratch=lambda spec: round_up(int(spec.attr("head_dim")) + 2, 16) * 4)
def combine(tile: Tile) -> None:
    dim = int(tile.spec.attr("head_dim"))
    heads = int(tile.spec.attr("heads"))
    partials_type, pos_type = tile.spec.operands[:2]
    stride = partials_type.shape[1] // heads
    partials, pos, *sinks = tile.operands
    assert tile.result is not None
    assert tile.spec.result is not None
    merged = tile.scratch.cast(f32)
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        position = position_of(pos, pos_type, token)
        first, chunks = first_seen(tile, position + 1) // CHUNK, position // CHUNK + 1
        row = partials.cast(f32).at(token * row_stride(partials_type.shape[1]))
        out = tile.result.cast(f32).at(token * row_stride(tile.spec.result.shape[1]))
        for head in loop(heads):
            of_head = row.at(head * stride)
            copy(merged, of_head.at(first * partial_floats(dim)), partial_floats(dim))
            for chunk in loop(chunks, first + 1):
                merge(merged, of_head.at(chunk * partial_floats(dim)), dim)
            for sink in sinks:
                merge_sink(merged, sink.cast(f32).load(head), dim)
            divide(out.at(head * dim), merged, dim)
