"""store_keys, store_values: a step's keys and values into the cache."""

from collections.abc import Iterator

from hotloop.ir.ops import CHUNK
from hotloop.ir.types import TensorType
from hotloop.kernels import cache_codes
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Pointer, Type, Value, f16, f32, i8, i32, i64, loop, strip

LANES = 16
"""Positions of the cache's keys that lie side by side; a page is a multiple of it."""


def element(cache: TensorType) -> Type:
    return {"f16": f16, "f32": f32, "i8": i8}[cache.format.name]


def position_of(pos: Pointer, type: TensorType, token: Value) -> Value:
    """The position of a token of the step: tokens follow each other, or each has its own."""
    if type.shape[0] == 1:
        return pos.cast(i32).load().to(i64) + token
    return pos.cast(i32).load(token).to(i64)


def page_of(pages: Pointer, type: TensorType, token: Value, chunk: Value) -> Value:
    """The page that holds a chunk of the token's sequence."""
    sequences, chunks = type.shape
    row = pages.cast(i32) if sequences == 1 else pages.cast(i32).at(token * chunks)
    return row.load(chunk).to(i64)


def head_offset(cache: TensorType, page: Value, head: Value) -> Value:
    """Where the elements of a head's positions in a page begin."""
    _, heads, size, width = cache.shape
    return (page * heads + head) * (size * width)


@kernel("store_keys")
def store_keys(tile: Tile) -> None:
    """Scatters: a position is a lane, so that attention's dot products never sum across lanes."""
    cache, dim = tile.spec.operands[0], int(tile.spec.attr("head_dim"))
    for head, position, x in _heads(tile):
        if cache.format.name == "i8":
            cache_codes.store_key(head, position, x, cache.shape[2], dim)
            continue
        column = head.at(position // LANES * (dim * LANES) + position % LANES)
        for i, lanes in strip(dim):
            value = x.load(i, lanes).to(head.element)
            for lane in range(lanes):
                column.store(value.lane(lane), (i + lane) * LANES)
            if not lanes:
                column.store(value, i * LANES)


@kernel("store_values")
def store_values(tile: Tile) -> None:
    cache, dim = tile.spec.operands[0], int(tile.spec.attr("head_dim"))
    for head, position, x in _heads(tile):
        if cache.format.name == "i8":
            cache_codes.store_value(head, position, x, cache.shape[2], dim)
            continue
        row = head.at(position * dim)
        for i, lanes in strip(dim):
            row.store(x.load(i, lanes).to(head.element), i)


def _heads(tile: Tile) -> Iterator[tuple[Pointer, Value, Pointer]]:
    """(a head in its page, position there, the head's part of x) of each token in the tile."""
    cache, x_type, pos_type, pages_type = tile.spec.operands
    dim = int(tile.spec.attr("head_dim"))
    into, x, pos, pages = tile.operands
    for token in loop(tile.count):
        position = position_of(pos, pos_type, token)
        page = page_of(pages, pages_type, token, position // CHUNK)
        row = x.cast(f32).at(token * row_stride(x_type.shape[1]))
        for feature in loop(tile.hi, tile.lo, dim):
            head = into.cast(element(cache)).at(head_offset(cache, page, feature // dim))
            yield head, position % CHUNK, row.at(feature)
