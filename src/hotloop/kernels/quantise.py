"""quantise: activations in 8 bit, 32 values to a scale, as the integer dot products read them."""

from hotloop.ir.approx import ROUND
from hotloop.kernels.tile import Tile, kernel, q8_stride, row_stride
from hotloop.lang import (
    absolute,
    f32,
    i8,
    i32,
    loop,
    max_lanes,
    maximum,
    minimum,
    select,
    sum_lanes,
)

BLOCK = 32
LARGEST = 127.0
SMALLEST_SCALE = 2.0**-126
"""The smallest scale whose reciprocal is finite; blocks with a smaller one become zeros."""

_ROUND_BITS = 0x4B400000


@kernel("quantise")
def quantise(tile: Tile) -> None:
    """q = x / scale to the nearest even, with scale = max|x| / 127; -128 never occurs."""
    width = tile.spec.operands[0].shape[1]
    blocks = width // BLOCK
    assert tile.result is not None
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        x = tile.operands[0].cast(f32).at(token * row_stride(width))
        record = tile.result.at(token * q8_stride(width))
        scales = record.at(width).cast(f32)
        sums = scales.at(2 * blocks).cast(i32)
        for block in loop(blocks):
            values = x.load(block * BLOCK, BLOCK)
            scale = max_lanes(absolute(values)) / LARGEST
            inverse = select(scale >= SMALLEST_SCALE, 1.0 / scale, 0.0)
            # The clamp holds back only infinities and NaN. Adding ROUND leaves the integer in the
            # low bits, so that no conversion is needed (and none can be out of range).
            scaled = maximum(minimum(values * inverse, LARGEST), -LARGEST)
            bits = (scaled + ROUND).bitcast(i32 * BLOCK)
            record.cast(i8).store(bits.to(i8), block * BLOCK)
            scales.store(scale, block)
            integers = bits - _ROUND_BITS
            halves = [sum_lanes(integers.low), sum_lanes(integers.high)]
            scales.store((halves[0] + halves[1]).to(f32) * scale, block + blocks)
            for half, total in enumerate(halves):
                sums.store(total, block * 2 + half)
