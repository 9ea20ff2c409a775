"""linear: y[t, n] = Σ_k x[t, k] · w[n, k], eight rows n at a time, one per vector lane.

The rows of a group are computed for several tokens at once, so that unpacking the weights is paid
once for all of them; what is left over of the tokens goes one by one. Either way a (row, token)
pair sees the same operations in the same order: neither the number of tokens nor the tiling
changes a bit.
"""

from collections.abc import Callable
from functools import partial

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_blocks import dot_blocks_f32, dot_blocks_q8
from hotloop.kernels.dot_plain import dot_plain
from hotloop.kernels.pack import group_bytes
from hotloop.kernels.tile import Tile, kernel, q8_stride, row_stride
from hotloop.lang import Pointer, Value, f32, loop

#: The dot products of one group with some tokens: (group, records of x) → f32x8 for each token.
Dots = Callable[[Pointer, list[Pointer]], list[Value]]


@kernel("linear")
def linear(tile: Tile) -> None:
    x_type, weight = tile.spec.operands
    x, packed = tile.operands
    assert tile.result is not None
    y = tile.result.cast(f32)
    stride = row_stride(weight.shape[0])
    dots, block = _dots(x_type, weight)
    blocked = tile.count // block * block if x_type.shape[0] >= block else None

    def compute(group: Value, first: Value, tokens: int) -> None:
        records = [_record(x, x_type, first + t) for t in range(tokens)]
        for t, sums in enumerate(dots(packed.at(group * group_bytes(weight)), records)):
            y.store(sums, (first + t) * stride + group * GROUP)

    for group in loop((tile.hi + (GROUP - 1)) // GROUP, tile.lo // GROUP):
        if blocked is not None:
            for first in loop(blocked, step=block):
                compute(group, first, block)
        for token in loop(tile.count, blocked or 0):
            compute(group, token, 1)


def _dots(x: TensorType, weight: TensorType) -> tuple[Dots, int]:
    """The dot product for these formats, and how many tokens its registers hold."""
    if not weight.format.quantised:
        return partial(dot_plain, weight), 2
    if x.format.name == "q8":
        return partial(dot_blocks_q8, weight), 4
    return partial(dot_blocks_f32, weight), 2


def _record(x: Pointer, type: TensorType, token: Value) -> Pointer:
    """Where token number `token` of the activation begins."""
    width = type.shape[1]
    return x.at(token * (q8_stride(width) if type.format.name == "q8" else row_stride(width) * 4))
