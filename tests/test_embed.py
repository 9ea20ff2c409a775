"""embed: rows of the table to the bit, and no token id that reads beyond it."""

import numpy as np
import pytest
from jit import assembly, buffer_of, compute, from_rows
from weights import BLOCKS, PLAIN, RECORDS, packed, real_weight, whole_blocks

from hotloop.ir.formats import dequantise
from hotloop.ir.types import TensorType, tensor
from hotloop.kernels.tile import OpSpec, define
from hotloop.lang import Module
from hotloop.lang.target import AARCH64


def embed_spec(table: TensorType, tokens: int) -> OpSpec:
    result = tensor("f32", tokens, table.shape[1])
    return OpSpec("embed", (tensor("i32", tokens), table), result)


def embed(table: TensorType, data: np.ndarray, ids: list[int], count: int) -> np.ndarray:
    tokens = buffer_of(np.array(ids, np.int32))
    buffer = compute(embed_spec(table, len(ids)), [tokens, packed(data, table)], count)
    assert np.isnan(from_rows(buffer, len(ids), table.shape[1])[count:]).all()
    return from_rows(buffer, len(ids), table.shape[1])[:count]


@pytest.mark.parametrize("format_name", PLAIN + BLOCKS + RECORDS)
def test_rows_are_the_files_to_the_bit(format_name: str) -> None:
    table = tensor(format_name, 131, whole_blocks(format_name, 64))
    data = real_weight(table)
    ids = [0, 130, 7, 8, 9, 0]
    y = embed(table, data, ids, 6)
    expected = dequantise(data, table)[ids]
    np.testing.assert_array_equal(y.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("columns", [1, 20, 33])
@pytest.mark.parametrize("format_name", PLAIN)
def test_odd_widths(format_name: str, columns: int) -> None:
    table = tensor(format_name, 9, columns)
    data = real_weight(table)
    y = embed(table, data, [8, 3], 1)
    np.testing.assert_array_equal(y, dequantise(data, table)[[8]])


def test_an_id_outside_the_table_reads_row_0() -> None:
    """131 rows are packed as 136: the padding is outside too."""
    table = tensor("q8_0", 131, 32)
    data = real_weight(table)
    ids = [-1, 131, 135, 136, 2**31 - 1, -(2**31)]
    y = embed(table, data, ids, len(ids))
    np.testing.assert_array_equal(y, dequantise(data, table)[[0] * len(ids)])


@pytest.mark.parametrize("format_name", PLAIN + BLOCKS + RECORDS)
def test_it_compiles_for_aarch64(format_name: str) -> None:
    module = Module("test", AARCH64)
    table = tensor(format_name, 131, whole_blocks(format_name, 64))
    define(module, embed_spec(table, 3), "tile").linkage = "external"
    assert "\tbl\t" not in assembly(module)
