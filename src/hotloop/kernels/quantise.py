"""quantise: activations in 8 bit, 32 values to a scale, as the integer dot products read them.

Eight blocks at a time: what is one number for a block is a lane then, so that reducing a block
takes half the shuffles, and eight blocks share their divisions.
"""

from collections.abc import Callable

from llvmlite import ir

from hotloop.ir.approx import ROUND
from hotloop.kernels.tile import Tile, kernel, q8_stride, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    absolute,
    call,
    constant,
    current,
    dot4,
    f32,
    function,
    i8,
    i32,
    i64,
    loop,
    maximum,
    minimum,
    ptr,
    select,
    u8,
)

BLOCK = 32
LARGEST = 127.0
SMALLEST_SCALE = 2.0**-126
"""The smallest scale whose reciprocal is finite; blocks with a smaller one become zeros."""

_AT_ONCE = 8


@kernel("quantise")
def quantise(tile: Tile) -> None:
    """q = x / scale to the nearest even, with scale = max|x| / 127; -128 never occurs."""
    width = tile.spec.operands[0].shape[1]
    blocks = width // BLOCK
    assert tile.result is not None
    convert = _record(_AT_ONCE if blocks >= _AT_ONCE else 1)
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        x = tile.operands[0].at(token * (row_stride(width) * 4))
        call(convert, [x, tile.result.at(token * q8_stride(width)), constant(blocks, i64)])


def _record(step: int) -> ir.Function:
    """The function that writes a record of at least `step` blocks, so many at a time.

    Made once for all widths, of which a model has two or three.
    """
    module = current().module
    name = f"quantise_by_{step}"
    if name not in module.functions:
        params = [("x", ptr), ("record", ptr), ("blocks", i64)]
        with function(module, name, params, noinline=True) as (x, record, blocks):
            assert isinstance(x, Pointer)
            assert isinstance(record, Pointer)
            for block in loop(blocks, step=step):
                # The last ones may overlap with those before: they become the same again.
                _blocks(x.cast(f32), record, minimum(block, blocks - step), step, blocks)
    return module.functions[name]


def _blocks(x: Pointer, record: Pointer, first: Value, count: int, blocks: Value) -> None:
    """`count` blocks of all, a power of two, from block `first` on."""
    scales = record.at(blocks * BLOCK).cast(f32)
    values = [x.load((first + i) * BLOCK, BLOCK) for i in range(count)]
    magnitudes = [absolute(block) for block in values]
    (largest,) = _reduce([maximum(m.low, m.high) for m in magnitudes], count, maximum)
    scale = largest / LARGEST
    inverse = select(scale >= SMALLEST_SCALE, constant(1.0, scale.type) / scale, 0.0)
    ones, sums = constant(1, u8 * BLOCK), []
    for i, block in enumerate(values):
        # The clamp holds back only infinities and NaN. Adding ROUND leaves the integer in the
        # low bits, so that no conversion is needed (and none can be out of range).
        factor = inverse.lane(i).broadcast(BLOCK)
        scaled = maximum(minimum(block * factor, LARGEST), -LARGEST)
        quants = (scaled + ROUND).bitcast(i32 * BLOCK).to(i8)
        record.cast(i8).store(quants, (first + i) * BLOCK)
        sums.append(dot4(ones, quants))
    halves = _reduce(sums, 2 * count, Value.__add__)
    (whole,) = _reduce(halves, count, Value.__add__)
    scales.store(scale, first)
    scales.store(whole.to(f32) * scale, first + blocks)
    for i, part in enumerate(halves):
        scales.at(2 * blocks).cast(i32).store(part, first * 2 + i * part.type.lanes)


def _reduce(
    vectors: list[Value], count: int, combine: Callable[[Value, Value], Value]
) -> list[Value]:
    """Neighbouring lanes combined until there are `count` in all, in order."""
    while len(vectors) * (lanes := vectors[0].type.lanes) > count:
        if len(vectors) > 1:
            pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
        else:
            pairs, lanes = [(vectors[0], vectors[0])], lanes // 2
        even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
        vectors = [combine(a.shuffle(even, b), a.shuffle(odd, b)) for a, b in pairs]
    return vectors
