"""store_keys, store_values: a step's keys and values into the cache, f16 or f32."""

from collections.abc import Iterator

from hotloop.ir.ops import CHUNK
from hotloop.ir.types import TensorType
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Pointer, Type, Value, f16, f32, i32, i64, loop, strip

LANES = 16
"""Positions of the cache's keys that lie side by side; a page is a multiple of it."""


def element(cache: TensorType) -> Type:
    return f16 if cache.format.name == "f16" else f32


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


def key_offset(cache: TensorType, page: Value, head: Value, position: Value | int = 0) -> Value:
    """Where element 0 of a key is, by its position in the page; element d lies LANES·d further."""
    _, heads, size, dim = cache.shape
    block = (page * heads + head) * (size // LANES) + position // LANES
    return block * (dim * LANES) + position % LANES


def value_offset(cache: TensorType, page: Value, head: Value, position: Value | int = 0) -> Value:
    """Where element 0 of a value is."""
    _, heads, size, dim = cache.shape
    return ((page * heads + head) * size + position) * dim


@kernel("store_keys")
def store_keys(tile: Tile) -> None:
    """Scatters: a position is a lane, so that attention's dot products never sum across lanes."""
    cache = tile.spec.operands[0]
    keys = tile.operands[0].cast(element(cache))
    for page, head, position, x in _heads(tile):
        column = keys.at(key_offset(cache, page, head, position))
        for i, lanes in strip(cache.shape[3]):
            value = x.load(i, lanes).to(keys.element)
            for lane in range(lanes):
                column.store(value.lane(lane), (i + lane) * LANES)
            if not lanes:
                column.store(value, i * LANES)


@kernel("store_values")
def store_values(tile: Tile) -> None:
    cache = tile.spec.operands[0]
    values = tile.operands[0].cast(element(cache))
    for page, head, position, x in _heads(tile):
        row = values.at(value_offset(cache, page, head, position))
        for i, lanes in strip(cache.shape[3]):
            row.store(x.load(i, lanes).to(values.element), i)


def _heads(tile: Tile) -> Iterator[tuple[Value, Value, Value, Pointer]]:
    """(page, head, position in the page, the head's part of x) of each token in the tile."""
    cache, x_type, pos_type, pages_type = tile.spec.operands
    dim = cache.shape[3]
    _, x, pos, pages = tile.operands
    for token in loop(tile.count):
        position = position_of(pos, pos_type, token)
        page = page_of(pages, pages_type, token, position // CHUNK)
        row = x.cast(f32).at(token * row_stride(x_type.shape[1]))
        for feature in loop(tile.hi, tile.lo, dim):
            yield page, feature // dim, position % CHUNK, row.at(feature)
