"""The layout that weights have in memory: eight rows interleaved, one per vector lane.

A weight [N, K] is cut into groups of eight rows (the last one padded with zero rows), stored one
after the other, so that the tile of rows lo … hi starts at byte lo // 8 · group_bytes. Within a
group, r is the row (the lane) and b the block of 32 columns:

    f32, f16, bf16   [K][8] elements: column k of the eight rows side by side
    q4_0, q4_1       quants [K/32][4][8][4] bytes: byte [b][v][r][i] holds column 32b + 4v + i in
                     its low nibble and column 32b + 16 + 4v + i in its high one
    q8_0             quants [K/32][8][8][4] int8: [b][v][r][i] is column 32b + 4v + i
    all three        after the quants, f16 scales [K/32][8]; then, q4_1, f16 minima [K/32][8]
    the others       records, see `records`

So four neighbouring columns of a row share a 32-bit lane, which is what 8-bit dot products sum.
A file's 16 or 32 quant bytes of a block, taken four at a time, are these lanes already: packing
only moves them. Scales have a stream of their own, since quants between them would not stay
aligned to 32 bytes, and a vector that crosses a cache line costs two reads.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.records import RECORDS
from hotloop.kernels.tile import round_up

Bytes = NDArray[np.uint8]
Array = NDArray[Any]

BLOCK = 32
"""Columns that share a scale in q8_0, q4_0 and q4_1, and in activations of 8 bit."""

#: A block in the file: scale, (minimum,) quants, as ggml declares them. Quants as 32-bit lanes.
_FILE_BLOCK = {
    "q8_0": np.dtype([("scale", "<u2"), ("quants", "<u4", (8,))]),
    "q4_0": np.dtype([("scale", "<u2"), ("quants", "<u4", (4,))]),
    "q4_1": np.dtype([("scale", "<u2"), ("minimum", "<u2"), ("quants", "<u4", (4,))]),
}


@dataclass(frozen=True)
class BlockLayout:
    """Where a group of a block format keeps what, in bytes from the group's start."""

    blocks: int
    """Blocks of a row: K / 32."""
    vectors: int
    """32-byte vectors of quants of a block."""
    scales: int
    minima: int | None
    used: int
    nbytes: int
    """Bytes of the whole group, padding included: a multiple of 32."""


@cache
def block_layout(type: TensorType) -> BlockLayout:
    """The layout of a group of `type`, which is in a block format."""
    block = _FILE_BLOCK[type.format.name]
    blocks = type.shape[1] // BLOCK
    vectors = block["quants"].shape[0]
    scales = blocks * vectors * 4 * GROUP
    minima = scales + blocks * 2 * GROUP
    has_minima = "minimum" in block.fields if block.fields else False
    end = minima + blocks * 2 * GROUP if has_minima else minima
    return BlockLayout(
        blocks, vectors, scales, minima if has_minima else None, end, round_up(end, 32)
    )


def matrix(type: TensorType) -> TensorType:
    """A weight as the matrix that is packed: experts [E, N, K], N a multiple of eight, as [E·N, K].

    So no group has rows of two experts.
    """
    *rows, columns = type.shape
    return TensorType(type.format, (prod(rows), columns))


def group_bytes(type: TensorType) -> int:
    """Bytes from one group of eight rows to the next."""
    if type.format.name in RECORDS:
        layout = RECORDS[type.format.name]
        return round_up(type.shape[1] // layout.columns * layout.record.itemsize, 32)
    if type.format.quantised:
        return block_layout(type).nbytes
    return type.shape[1] * GROUP * type.format.block_bytes


def groups(type: TensorType) -> int:
    return -(-type.shape[0] // GROUP)


def packed_bytes(type: TensorType) -> int:
    """Bytes of the packed weight, a multiple of 64."""
    return round_up(groups(type) * group_bytes(type), 64)


def pack(data: Bytes, type: TensorType, out: Bytes) -> None:
    """Pack the file's bytes of a weight [N, K] into `out`, `packed_bytes(type)` bytes.

    NumPy's copies release the interpreter lock, so several threads can pack at once.
    """
    whole, rest = divmod(type.shape[0], GROUP)
    file_group = type.nbytes // type.shape[0] * GROUP
    packed_end = whole * group_bytes(type)
    _interleave(data[: whole * file_group], type, out[:packed_end])
    if rest:
        last = np.zeros(file_group, np.uint8)
        last[: data.nbytes - whole * file_group] = data[whole * file_group :]
        _interleave(last, type, out[packed_end : packed_end + group_bytes(type)])
    out[groups(type) * group_bytes(type) :] = 0


def _interleave(data: Bytes, type: TensorType, out: Bytes) -> None:
    """Pack whole groups."""
    count = out.nbytes // group_bytes(type)
    if type.format.name in RECORDS:
        RECORDS[type.format.name].pack(data, out.reshape(count, group_bytes(type)), type.shape[1])
        return
    if not type.format.quantised:
        rows = data.view(_element(type)).reshape(count, GROUP, type.shape[1])
        _columns(out, type)[...] = rows.transpose(0, 2, 1)
        return
    blocks = data.view(_FILE_BLOCK[type.format.name]).reshape(count, GROUP, type.shape[1] // BLOCK)
    for name, stream in _streams(out, type).items():
        stream[...] = np.moveaxis(blocks[name], 1, -1)
    out.reshape(count, group_bytes(type))[:, block_layout(type).used :] = 0


def _element(type: TensorType) -> np.dtype[Any]:
    assert type.format.numpy is not None
    return type.format.numpy


def _columns(packed: Bytes, type: TensorType) -> Array:
    """A packed plain weight as [group][K][8]."""
    return packed.view(_element(type)).reshape(-1, type.shape[1], GROUP)


def _streams(packed: Bytes, type: TensorType) -> dict[str, Array]:
    """Views of a packed block weight: fields of the file's blocks, lanes last.

    quants [group][K/32][vector][8] u32; scale and minimum [group][K/32][8] u16.
    """
    layout = block_layout(type)
    whole = packed.reshape(-1, layout.nbytes)

    def stream(start: int, element: str, *shape: int) -> Array:
        size = np.dtype(element).itemsize * int(np.prod(shape))
        return whole[:, start : start + size].view(element).reshape(len(whole), *shape)

    streams = {
        "quants": stream(0, "<u4", layout.blocks, layout.vectors, GROUP),
        "scale": stream(layout.scales, "<u2", layout.blocks, GROUP),
    }
    if layout.minima is not None:
        streams["minimum"] = stream(layout.minima, "<u2", layout.blocks, GROUP)
    return streams
