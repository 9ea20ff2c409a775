"""Meanings of the stored formats against the `gguf` package's own, to the bit."""

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from hotloop.frontends.ggml_small import STORED
from hotloop.frontends.gguf import SUPPORTED
from hotloop.ir import grouped, unpacked
from hotloop.ir.formats import dequantise
from hotloop.ir.types import FORMATS, tensor
from hotloop.kernels.pack import packed_bytes

BLOCKS = [
    name
    for name, format in FORMATS.items()
    if format.quantised and name != "q8" and name not in grouped.FILE and name not in unpacked.BOOKS
]


def theirs(data: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.dequantize(data, gguf.GGMLQuantizationType[name.upper()]).reshape(-1)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("name", BLOCKS)
def test_random_bytes_mean_what_gguf_says(name: str, rows: int) -> None:
    """Every byte there is: subnormal, infinite and NaN scales included."""
    assert (
        FORMATS[name].block_bytes
        == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]][1]
    )
    type = tensor(name, rows, 32 * FORMATS[name].block)
    data = np.random.default_rng(rows).integers(0, 256, type.nbytes, dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = dequantise(data, type)
    assert values.shape == type.shape
    assert values.dtype == np.float32
    expected = theirs(data, name)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(values.reshape(-1)), nan)
    same = values.reshape(-1).view(np.uint32)[~nan]
    np.testing.assert_array_equal(same, expected.view(np.uint32)[~nan])


def test_each_exponent_of_mxfp4() -> None:
    type = tensor("mxfp4", 1, 256 * 32)
    data = np.full((256, 17), 0x11, np.uint8)
    data[:, 0] = np.arange(256)
    values = dequantise(data.reshape(-1), type).reshape(256, 32)
    np.testing.assert_array_equal(values[:, 0], 2.0 ** (np.arange(256) - 128.0))
    assert (values == values[:, :1]).all()


@pytest.mark.parametrize("name", grouped.FILE)
def test_blocks_of_groups_are_what_their_format_says(name: str) -> None:
    assert grouped.FILE[name].itemsize == FORMATS[name].block_bytes
    type = tensor(name, 3, 256)
    data = np.random.default_rng(0).integers(0, 256, type.nbytes, dtype=np.uint8)
    blocks = data.view(grouped.FILE[name])
    blocks["scale"] = 2
    values = dequantise(data, type).reshape(len(blocks), -1)
    for block, row in zip(blocks, values, strict=True):
        for column, value in enumerate(row):
            code = block["codes"][column if name[1] == "8" else column // 32 * 16 + column % 16]
            if name[1] == "4":
                code = code >> 4 if column % 32 >= 16 else code & 15
            number = grouped.e4m3(code) if name[0] == "f" else int(code) - int(block["zero"])
            assert value == 2 * number or np.isnan(number)


def test_the_documented_bits_are_those_of_the_code() -> None:
    """The GGUF table of docs/formats.md: every format that is read, in the file and in memory."""
    text = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| (\w+) \| ([\d.]+) \|$", text, re.M)
    plain = {"F32", "F16", "BF16"}
    assert {row[0] for row in rows} == set(SUPPORTED) - plain
    for stored, stored_bits, name, bits in rows:
        format = STORED.get(stored) or FORMATS[stored.lower()]
        type = tensor(name, 2048, 2048)
        assert f"{8 * format.block_bytes / format.block:.2f}" == stored_bits
        assert f"{8 * packed_bytes(type) / type.elements:.2f}" == bits
