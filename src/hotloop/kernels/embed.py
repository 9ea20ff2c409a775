"""embed: rows of the packed embedding table, dequantised exactly as `hotloop.ir.formats` does."""

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.dot_records import write_record_row
from hotloop.kernels.pack import BLOCK, block_layout, group_bytes
from hotloop.kernels.packed import load_plain, load_scales, quants_at
from hotloop.kernels.records import RECORDS
from hotloop.kernels.tile import Tile, kernel, row_stride
from hotloop.lang import Pointer, Value, f32, i8, i32, i64, loop, minimum, select, u8


@kernel("embed")
def embed(tile: Tile) -> None:
    """Token ids outside the table read row 0, so no input can read beyond it."""
    table = tile.spec.operands[1]
    vocabulary, width = table.shape
    tokens, packed = tile.operands
    assert tile.result is not None
    y = tile.result.cast(f32)
    write_row = _write_blocks if table.format.quantised else _write_plain
    if table.format.name in RECORDS:
        write_row = write_record_row
    for token in loop(minimum(tile.hi, tile.count), tile.lo):
        number = tokens.cast(i32).load(token).to(i64)
        known = (number >= 0) & (number < vocabulary)
        row = select(known, number, 0)
        group = packed.at(row // GROUP * group_bytes(table))
        write_row(table, group, row % GROUP, y.at(token * row_stride(width)))


def _write_plain(table: TensorType, group: Pointer, lane: Value, out: Pointer) -> None:
    for column in loop(table.shape[1]):
        out.store(load_plain(table, [group], column * GROUP + lane), column)


def _write_blocks(table: TensorType, group: Pointer, lane: Value, out: Pointer) -> None:
    signed = table.format.name == "q8_0"
    for block in loop(table.shape[1] // BLOCK):
        scale, shift = load_scales(table, group, block * GROUP + lane)
        quants = quants_at(table, group, block).cast(i8 if signed else u8)
        for vector in range(block_layout(table).vectors):
            four = quants.load(lane * 4 + vector * 32, lanes=4)
            for q, start in [(four, 0)] if signed else [(four & 15, 0), (four >> 4, 16)]:
                q = q.to(i32) - 8 if table.format.name == "q4_0" else q.to(i32)
                values = scale * q.to(f32)
                if shift is not None:
                    values = values + shift
                out.store(values, block * BLOCK + (start + 4 * vector))
