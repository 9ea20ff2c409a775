"""Packed weights: every bit comes back, and groups of rows stand by themselves."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from weights import (
    BLOCKS,
    PLAIN,
    RECORDS,
    blocks_of,
    packed,
    real_weight,
    set_half,
    whole_blocks,
)

from hotloop.ir.formats import dequantise
from hotloop.ir.types import TensorType, tensor
from hotloop.kernels.pack import group_bytes, pack, packed_bytes

ROWS = [1, 7, 8, 9, 131]
SHAPES = [
    (format_name, rows, columns)
    for format_name in PLAIN + BLOCKS
    for rows in ROWS
    for columns in ((32, 64, 576) if format_name in BLOCKS else (1, 20, 33, 64))
]
RECORD_SHAPES = [
    (format_name, rows, whole_blocks(format_name, columns))
    for format_name in RECORDS
    for rows in ROWS
    for columns in (32, 576)
]


def unpack(packed: np.ndarray, type: TensorType) -> np.ndarray:
    """float32 [N, K] of a packed plain or block weight, by the layout as it is written down."""
    rows, columns = type.shape
    groups, size = -(-rows // 8), group_bytes(type)
    whole = packed[: groups * size].reshape(groups, size)

    def stream(start: int, *shape: int) -> np.ndarray:
        """The bytes [groups, *shape] that lie from `start` on in each group."""
        return whole[:, start : start + math.prod(shape)].reshape(groups, *shape)

    if type.format.quantised:
        blocks, halves = columns // 32, 2 if type.format.name == "q4_1" else 1
        bits = 8 if type.format.name == "q8_0" else 4
        quants = stream(0, blocks, bits, 8, 4).transpose(0, 3, 1, 2, 4)
        numbers = stream(blocks * bits * 32, halves, blocks, 8, 2).transpose(0, 3, 2, 1, 4)
        fields = [field.reshape(groups, 8, blocks, -1) for field in (numbers, quants)]
        data = np.concatenate(fields, axis=-1)
    else:
        data = stream(0, columns, 8, type.format.block_bytes).transpose(0, 2, 1, 3)
    padded = tensor(type.format.name, groups * 8, columns)
    return dequantise(data.reshape(-1), padded)[:rows]


@pytest.mark.parametrize(("format_name", "rows", "columns"), SHAPES)
def test_unpacking_gives_the_values_of_the_file(format_name: str, rows: int, columns: int) -> None:
    type = tensor(format_name, rows, columns)
    data = real_weight(type, seed=rows)
    values = unpack(packed(data, type), type)
    np.testing.assert_array_equal(values, dequantise(data, type))


@pytest.mark.parametrize(("format_name", "rows", "columns"), SHAPES + RECORD_SHAPES)
def test_sizes_add_up(format_name: str, rows: int, columns: int) -> None:
    type = tensor(format_name, rows, columns)
    groups = -(-rows // 8)
    assert packed_bytes(type) % 64 == 0
    assert 0 <= packed_bytes(type) - groups * group_bytes(type) < 64
    # Packing moves bits and pads: a group costs at most 32 bytes more than its rows, and four
    # bytes for each block of which it widens 6-bit scales.
    padded = tensor(format_name, groups * 8, columns)
    widened = 4 * 8 * columns // 256 if format_name in ("q3_k", "q4_k", "q5_k", "iq4_xs") else 0
    assert 0 <= groups * group_bytes(type) - padded.nbytes < (32 + widened) * groups


@pytest.mark.parametrize("format_name", PLAIN + BLOCKS + RECORDS)
def test_a_group_depends_on_its_eight_rows_alone(format_name: str) -> None:
    columns = whole_blocks(format_name, 64)
    whole, part = tensor(format_name, 40, columns), tensor(format_name, 8, columns)
    data = real_weight(whole)
    size = group_bytes(whole)
    everything = packed(data, whole)
    for group in range(5):
        rows = data[group * part.nbytes : (group + 1) * part.nbytes]
        alone = packed(rows, part)[:size]
        np.testing.assert_array_equal(everything[group * size : (group + 1) * size], alone)


@pytest.mark.parametrize("format_name", PLAIN + BLOCKS)
def test_rows_that_do_not_exist_are_zero(format_name: str) -> None:
    type = tensor(format_name, 11, 64)
    values = unpack(packed(real_weight(type), type), tensor(format_name, 16, 64))
    assert (values[11:] == 0).all()


def test_odd_bits_survive() -> None:
    """Infinite, subnormal and negative-zero scales are the file's affair."""
    type = tensor("q4_1", 8, 64)
    data = real_weight(type)
    set_half(blocks_of(data, type), 0, np.resize([np.inf, 6e-8, -0.0, 65504], 16))
    with np.errstate(invalid="ignore"):
        expected = dequantise(data, type)
        values = unpack(packed(data, type), type)
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_quants_of_the_first_block_lie_where_kernels_expect_them() -> None:
    type = tensor("q4_0", 8, 32)
    data = np.zeros(type.nbytes, np.uint8)
    row, byte = 5, 7  # columns 7 and 23: vector 1, fourth byte of lane 5
    blocks_of(data, type)[row, 2 + byte] = 0xA3
    out = packed(data, type)
    assert out[1 * 32 + row * 4 + 3] == 0xA3
    assert np.count_nonzero(out) == 1


def test_threads_pack_side_by_side() -> None:
    types = [tensor(name, 131, 768) for name in PLAIN + BLOCKS + RECORDS] * 2
    data = [real_weight(type, seed) for seed, type in enumerate(types)]
    out = [np.full(packed_bytes(type), 0xFF, np.uint8) for type in types]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pack, data, types, out))
    for bytes_, type, result in zip(data, types, out, strict=True):
        np.testing.assert_array_equal(result, packed(bytes_, type))
