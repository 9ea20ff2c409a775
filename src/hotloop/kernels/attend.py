"""attend, combine: attention for a single token, its keys split among the threads.

Each (key head, chunk of positions) pair is a piece of work, and the pieces that the position needs
are cut into as many equal shares as the op has rows: work is even at any position, and whatever
lies beyond costs nothing. All query heads of a key head go together, so keys and values stream from
memory once.
"""

from hotloop.ir.ops import CHUNK
from hotloop.kernels.cache import element, key_offset
from hotloop.kernels.chunk import Chunk, copy, divide, merge, partial_floats
from hotloop.kernels.tile import OpSpec, Tile, kernel, round_up
from hotloop.lang import f32, i32, i64, loop, minimum


def _together(group: int) -> int:
    """Queries whose sums share the registers: as few passes as possible, evenly filled."""
    passes = -(-group // 4)
    return -(-group // passes)


def _group(spec: OpSpec) -> int:
    return int(spec.attr("heads")) // spec.operands[1].shape[0]


@kernel("attend", scratch=lambda spec: _group(spec) * CHUNK * 4)
def attend(tile: Tile) -> None:
    cache = tile.spec.operands[1]
    kv_heads, context, dim = cache.shape
    group = _group(tile.spec)
    q, keys, values, pos = tile.operands
    assert tile.result is not None
    seen = pos.cast(i32).load().to(i64) + 1
    chunks = (seen + (CHUNK - 1)) // CHUNK
    work = chunks * kv_heads
    rows = tile.spec.rows
    stride = -(-context // CHUNK) * partial_floats(dim)
    for piece in loop(tile.hi * work // rows, tile.lo * work // rows):
        kv_head, chunk = piece // chunks, piece % chunks
        first = chunk * CHUNK
        Chunk(
            q=q.cast(f32).at(kv_head * (group * dim)),
            keys=keys.cast(element(cache)).at(key_offset(cache, kv_head, first)),
            values=values.cast(element(cache)).at((kv_head * context + first) * dim),
            scores=tile.scratch.cast(f32),
            out=tile.result.cast(f32).at(kv_head * (group * stride) + chunk * partial_floats(dim)),
            out_stride=stride,
            queries=group,
            together=_together(group),
            positions=minimum(seen - first, CHUNK),
            dim=dim,
            scale=float(tile.spec.attr("scale")),
            streamed=True,
        ).attend()


@kernel("combine", scratch=lambda spec: round_up(int(spec.attr("head_dim")) + 2, 16) * 4)
def combine(tile: Tile) -> None:
    dim = int(tile.spec.attr("head_dim"))
    heads = int(tile.spec.attr("heads"))
    stride = tile.spec.operands[0].shape[1] // heads
    partials, pos = tile.operands
    assert tile.result is not None
    chunks = pos.cast(i32).load().to(i64) // CHUNK + 1
    merged = tile.scratch.cast(f32)
    for head in loop(heads):
        of_head = partials.cast(f32).at(head * stride)
        copy(merged, of_head, partial_floats(dim))
        for chunk in loop(chunks, 1):
            merge(merged, of_head.at(chunk * partial_floats(dim)), dim)
        divide(tile.result.cast(f32).at(head * dim), merged, dim)
