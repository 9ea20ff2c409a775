"""store_keys, store_values: a step's keys and values into the cache, f16 or f32."""

from collections.abc import Iterator

from hotloop.ir.types import TensorType
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Pointer, Type, Value, f16, f32, i32, i64, loop, strip

LANES = 16
"""Positions of the cache's keys that lie side by side; a context is a multiple of it."""


def element(cache: TensorType) -> Type:
    return f16 if cache.format.name == "f16" else f32


def key_offset(cache: TensorType, head: Value, position: Value) -> Value:
    """Where element 0 of a key is; element d lies LANES·d further on."""
    _, context, dim = cache.shape
    block = head * (context // LANES) + position // LANES
    return block * (dim * LANES) + position % LANES


@kernel("store_keys")
def store_keys(tile: Tile) -> None:
    """Scatters: a position is a lane, so that attention's dot products never sum across lanes."""
    cache = tile.spec.operands[0]
    keys = tile.operands[0].cast(element(cache))
    for head, position, x in _heads(tile):
        column = keys.at(key_offset(cache, head, position))
        for i, lanes in strip(cache.shape[2]):
            value = x.load(i, lanes).to(keys.element)
            for lane in range(lanes):
                column.store(value.lane(lane), (i + lane) * LANES)
            if not lanes:
                column.store(value, i * LANES)


@kernel("store_values")
def store_values(tile: Tile) -> None:
    cache = tile.spec.operands[0]
    values = tile.operands[0].cast(element(cache))
    _, context, dim = cache.shape
    for head, position, x in _heads(tile):
        row = values.at((head * context + position) * dim)
        for i, lanes in strip(dim):
            row.store(x.load(i, lanes).to(values.element), i)


def _heads(tile: Tile) -> Iterator[tuple[Value, Value, Pointer]]:
    """(head, position, the head's part of x) for each token and head of the tile."""
    cache, x_type, _ = tile.spec.operands
    dim = cache.shape[2]
    _, x, pos = tile.operands
    first = pos.cast(i32).load().to(i64)
    for token in loop(tile.count):
        row = x.cast(f32).at(token * row_stride(x_type.shape[1]))
        for feature in loop(tile.hi, tile.lo, dim):
            yield feature // dim, first + token, row.at(feature)
