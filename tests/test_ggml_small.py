"""GGUF's smallest formats: unpacked, they mean what the `gguf` package says, to the bit."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from jit import aligned

from hotloop.frontends.ggml_small import STORED, unpacked
from hotloop.frontends.gguf import read_gguf
from hotloop.frontends.model_file import WeightData
from hotloop.ir.formats import dequantise
from hotloop.ir.types import TensorType
from hotloop.ir.unpacked import BLOCK, BOOKS
from hotloop.kernels.pack import pack, packed_bytes
from hotloop.util.errors import UnsupportedError


def random_blocks(name: str, count: int) -> np.ndarray:
    """All bytes there are, but for infinite and NaN scales."""
    blocks = np.random.default_rng(0).integers(
        0, 256, (count, STORED[name].block_bytes), dtype=np.uint8
    )
    if name == "IQ1_M":
        blocks[:, 55] &= 0xBF  # the top of the scale's exponent
    else:
        blocks[:, -1 if name.startswith("TQ") else 1] &= 0xBF
    return blocks


def weight(name: str, shape: tuple[int, ...]) -> WeightData:
    blocks = random_blocks(name, int(np.prod(shape)) // 256)
    return WeightData("w", TensorType(STORED[name], shape), blocks.reshape(-1))


@pytest.mark.parametrize("name", STORED)
def test_nothing_is_lost(name: str) -> None:
    stored = weight(name, (1100, 256))
    kind = gguf.GGMLQuantizationType[name]
    assert STORED[name].block_bytes == gguf.GGML_QUANT_SIZES[kind][1]
    made = unpacked(stored)
    values = dequantise(made.data, made.type)
    expected = gguf.dequantize(stored.data.reshape(1100, -1), kind)
    np.testing.assert_array_equal(values, expected)  # a zero may have lost its sign
    same = (values.view(np.uint32) == expected.view(np.uint32)) | (values == 0)
    assert same.all()


@pytest.mark.parametrize("name", STORED)
def test_files_open_and_pack(name: str, tmp_path: Path) -> None:
    stored = weight(name, (9, 512))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    kind = gguf.GGMLQuantizationType[name]
    writer.add_tensor("w", stored.data.reshape(9, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / "m.gguf").tensors["w"]
    np.testing.assert_array_equal(found.data, unpacked(stored).data)
    pack(found.data, found.type, aligned(packed_bytes(found.type)))
    found.release()


def test_books_fit_four_bits_and_blocks_their_format() -> None:
    for name, book in BOOKS.items():
        assert len(set(book)) == len(book) <= 16, name
    assert BLOCK.itemsize == 146


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnsupportedError, match=r"IQ2_XS needs .* pip install hotloop\[iq\]"):
        _ = unpacked(weight("IQ2_XS", (1, 256))).data
