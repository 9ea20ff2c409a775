"""embed: rows of the packed embedding table, dequantised exactly as `hotloop.ir.formats` does."""

from hotloop.ir.types import TensorType
from hotloop.kernels.pack import BLOCK, block_layout, group_bytes
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import (
    Pointer,
    Value,
    bf16_to_f32,
    f16,
    f32,
    i8,
    i32,
    i64,
    loop,
    minimum,
    select,
    u8,
    u16,
)

ROWS = 8


@kernel("embed")
def embed(tile: Tile) -> None:
    """Token ids outside the table read row 0, so no input can read beyond it."""
    table = tile.spec.operands[1]
    vocabulary, width = table.shape
    tokens, packed = tile.operands
    assert tile.result is not None
    y = tile.result.cast(f32)
    write_row = _write_blocks if table.format.quantised else _write_plain
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        number = tokens.cast(i32).load(token).to(i64)
        known = (number >= 0) & (number < vocabulary)
        row = select(known, number, 0)
        group = packed.at(row // ROWS * group_bytes(table))
        write_row(table, group, row % ROWS, y.at(token * row_stride(width)))


def _write_plain(table: TensorType, group: Pointer, lane: Value, out: Pointer) -> None:
    for column in loop(table.shape[1]):
        at = column * ROWS + lane
        if table.format.name == "bf16":
            out.store(bf16_to_f32(group.cast(u16).load(at)), column)
        else:
            element = f16 if table.format.name == "f16" else f32
            out.store(group.cast(element).load(at).to(f32), column)


def _write_blocks(table: TensorType, group: Pointer, lane: Value, out: Pointer) -> None:
    layout = block_layout(table)
    signed = table.format.name == "q8_0"
    for block in loop(layout.blocks):
        at = block * ROWS + lane
        d = group.at(layout.scales).cast(f16).load(at).to(f32)
        shift = None
        if layout.minima is not None:
            shift = group.at(layout.minima).cast(f16).load(at).to(f32)
        for vector in range(layout.vectors):
            lanes = group.at(block * (layout.vectors * 32) + vector * 32)
            four = lanes.cast(i8 if signed else u8).load(lane * 4, lanes=4)
            halves = [(four, 0)] if signed else [(four & 15, 0), (four >> 4, 16)]
            for q, start in halves:
                q = q.to(i32) - 8 if table.format.name == "q4_0" else q.to(i32)
                values = q.to(f32) * d
                if shift is not None:
                    values = values + shift
                out.store(values, block * BLOCK + (start + 4 * vector))
