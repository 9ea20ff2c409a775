"""The GGUF reader: equal to the `gguf` package on sound files, one clear sentence on all others."""

import os
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.frontends.gguf import GGML_TYPES, read_gguf
from hotloop.frontends.model_file import ModelFile
from hotloop.ir.formats import dequantise
from hotloop.ir.types import tensor
from hotloop.util.errors import HotloopError, ModelFileError, UnsupportedError

STORED = {  # our format: ggml's type, and a shape that is awkward for it
    "f32": (gguf.GGMLQuantizationType.F32, (3, 5)),
    "f16": (gguf.GGMLQuantizationType.F16, (1, 7)),
    "bf16": (gguf.GGMLQuantizationType.BF16, (2, 3, 9)),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, (5, 96)),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, (1, 32)),
    "q4_1": (gguf.GGMLQuantizationType.Q4_1, (3, 2, 64)),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every metadata type and every format we read, written by the `gguf` package."""
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_bool("a.no", False)
    writer.add_string("a.text", "naïve 日本語 🙂 \x00 end")
    writer.add_string("a.empty", "")
    writer.add_array("a.texts", ["", "a", "▁é", "🙂" * 300])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.25])
    writer.add_array("a.flags", [True, False])
    rng = np.random.default_rng(0)
    for name, (kind, shape) in STORED.items():
        values = rng.standard_normal(shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_the_oracle(sound: Path) -> None:
    ours = read_gguf(sound)
    oracle = gguf.GGUFReader(sound)
    theirs = {
        key: field.contents() for key, field in oracle.fields.items() if not key.startswith("GGUF.")
    }
    assert dict(ours.metadata) == theirs
    assert ours.architecture == "llama"
    assert type(ours.metadata["a.yes"]) is bool
    assert type(ours.metadata["a.u8"]) is int
    assert ours.metadata["a.u64"] == 2**64 - 1


def test_tensors_equal_the_oracle(sound: Path) -> None:
    ours = read_gguf(sound)
    oracle = {item.name: item for item in gguf.GGUFReader(sound).tensors}
    assert set(ours.tensors) == set(oracle)
    for name, weight in ours.tensors.items():
        theirs = oracle[name]
        assert weight.name == name
        assert weight.type.shape == tuple(int(n) for n in theirs.shape[::-1])
        assert weight.type.nbytes == theirs.n_bytes == weight.data.nbytes
        assert weight.data.tobytes() == theirs.data.tobytes()
        assert not weight.data.flags.owndata
        assert not weight.data.flags.writeable


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("blocks", [1, 3])
def test_dequantise_equals_the_oracle(name: str, rows: int, blocks: int) -> None:
    kind = STORED[name][0]
    type = tensor(name, rows, blocks * max(1, tensor(name, 1, 32).format.block))
    rng = np.random.default_rng(rows * 10 + blocks)
    data = rng.integers(0, 256, type.nbytes, dtype=np.uint8)
    for at in range(0, type.nbytes, type.format.block_bytes):  # any payload, but finite scales
        scales = rng.standard_normal(2).astype(np.float16).view(np.uint8)
        head = data[at : at + min(4, type.format.block_bytes)]
        head[:] = scales[: head.size]
    theirs = gguf.quants.dequantize(data.reshape(rows, -1), kind)
    ours = dequantise(data, type)
    assert ours.dtype == np.float32
    assert ours.shape == type.shape
    np.testing.assert_array_equal(ours, theirs.reshape(type.shape))


def test_type_names_equal_the_oracle() -> None:
    assert {GGML_TYPES[kind.value]: kind.value for kind in gguf.GGMLQuantizationType} == {
        kind.name: kind.value for kind in gguf.GGMLQuantizationType
    }


# Files made by hand, to break them one field at a time.


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(
    name: str | bytes = "w", dims: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0
) -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


ARCHITECTURE = pair("general.architecture", 8, text("llama"))


def build(
    pairs: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = bytes(64),
    *,
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    pairs = [ARCHITECTURE] if pairs is None else pairs
    infos = [info()] if infos is None else infos
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(infos) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def opened(tmp_path: Path, content: bytes) -> ModelFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return read_gguf(path)


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return pair("x", 9, struct.pack("<IQ", kind, count) + body)


DAMAGED = {
    "empty": (b"", "is empty"),
    "two bytes": (b"GG", "not a GGUF file"),
    "other magic": (b"PK\x03\x04" + bytes(60), "not a GGUF file: it starts with"),
    "only magic": (b"GGUF", "the header goes past the end of the file (4 bytes)"),
    "no counts": (b"GGUF\x03\0\0\0", "the header goes past the end"),
    "no architecture": (build(pairs=[]), "general.architecture"),
    "architecture not text": (
        build(pairs=[pair("general.architecture", 4, bytes(4))]),
        "general.architecture",
    ),
    "absurd tensor count": (build(tensor_count=2**63), "announces 9223372036854775808 tensors"),
    "absurd pair count": (build(pair_count=2**64 - 1), "metadata entries, and only"),
    "absurd array": (build(pairs=[ARCHITECTURE, array(0, 2**63)]), "numbers, and only"),
    "absurd text array": (build(pairs=[ARCHITECTURE, array(8, 2**61)]), "strings, and only"),
    "array longer than file": (build(pairs=[ARCHITECTURE, array(6, 1000)]), "announces 1000"),
    "absurd text length": (
        build(pairs=[ARCHITECTURE, text("k") + struct.pack("<IQ", 8, 2**64 - 1)]),
        "metadata entry 'k' goes past the end",
    ),
    "absurd key length": (build(pairs=[struct.pack("<Q", 2**62)]), "metadata entry 0"),
    "nested array": (build(pairs=[ARCHITECTURE, array(9, 1, bytes(64))]), "array of type number 9"),
    "unknown value type": (build(pairs=[ARCHITECTURE, pair("x", 13, bytes(8))]), "type number 13"),
    "key not UTF-8": (build(pairs=[pair(b"\xff\xfe", 4, bytes(4))]), "not valid UTF-8"),
    "text not UTF-8": (build(pairs=[pair("x", 8, text(b"\xc3"))]), "'x' is not valid UTF-8"),
    "texts not UTF-8": (
        build(pairs=[array(8, 2, text("a") + text(b"\x80"))]),
        "'x' is not valid UTF-8",
    ),
    "lone surrogate": (build(pairs=[pair("x", 8, text(b"\xed\xa0\x80"))]), "not valid UTF-8"),
    "key twice": (build(pairs=[ARCHITECTURE, ARCHITECTURE]), "two metadata entries"),
    "alignment of text": (
        build(pairs=[ARCHITECTURE, pair("general.alignment", 8, text("32"))]),
        "general.alignment is '32', not a power of two",
    ),
    "alignment 0": (
        build(pairs=[ARCHITECTURE, pair("general.alignment", 4, struct.pack("<I", 0))]),
        "general.alignment is 0",
    ),
    "alignment 24": (
        build(pairs=[ARCHITECTURE, pair("general.alignment", 4, struct.pack("<I", 24))]),
        "general.alignment is 24",
    ),
    "alignment -32": (
        build(pairs=[ARCHITECTURE, pair("general.alignment", 5, struct.pack("<i", -32))]),
        "general.alignment is -32",
    ),
    "alignment beyond the file": (
        build(pairs=[ARCHITECTURE, pair("general.alignment", 10, struct.pack("<Q", 2**63))]),
        "of 0 bytes of data",
    ),
    "tensor twice": (build(infos=[info(), info(offset=32)]), "two tensors 'w'"),
    "tensor name not UTF-8": (build(infos=[info(name=b"\xff")]), "not valid UTF-8"),
    "no dimensions": (build(infos=[info(dims=())]), "has 0 dimensions, not 1 to 4"),
    "five dimensions": (build(infos=[info(dims=(1,) * 5)]), "has 5 dimensions"),
    "dimension 0": (build(infos=[info(dims=(8, 0))]), "has a dimension of 0"),
    "overflowing dimensions": (build(infos=[info(dims=(2**63, 2**63))]), "bytes of data"),
    "wrapping to 0": (build(infos=[info(dims=(2**32, 2**32))]), "bytes of data"),
    "partial block": (build(infos=[info(dims=(33,), kind=3)]), "rows of 33 elements"),
    "one byte short": (build(data=bytes(31)), "ends at byte 32 of 31 bytes of data"),
    "no data": (build(data=b""), "of 0 bytes of data"),
    "misaligned": (build(infos=[info(offset=16)]), "offset 16, not a multiple of 32"),
    "out of bounds": (build(infos=[info(offset=64)]), "ends at byte 96 of 64"),
    "absurd offset": (build(infos=[info(offset=2**64 - 32)]), "of 64 bytes of data"),
    "overlap": (
        build(infos=[info("b", dims=(9,)), info("a", offset=32)], data=bytes(96)),
        "'b' and 'a' overlap",
    ),
    "same place": (build(infos=[info("a"), info("b")]), "overlap"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_clear_sentence(case: str, tmp_path: Path) -> None:
    content, found = DAMAGED[case]
    with pytest.raises(ModelFileError) as error:
        opened(tmp_path, content)
    message = str(error.value)
    assert message.startswith(str(tmp_path / "m.gguf"))
    assert found in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))


UNSUPPORTED = {
    "version 1": (build(version=1), "GGUF version 1; hotloop reads versions 2 and 3"),
    "newer version": (build(version=4), "GGUF version 4"),
    "big-endian": (b"GGUF\x00\x00\x00\x03" + bytes(64), "big-endian"),
    "Q8_K": (build(infos=[info(dims=(256,), kind=15)]), "tensor 'w' as Q8_K; hotloop reads F32"),
    "removed type": (build(infos=[info(kind=4)]), "as Q4_2"),
    "unknown type": (build(infos=[info(kind=2**32 - 1)]), "as type number 4294967295"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_is_named(case: str, tmp_path: Path) -> None:
    content, found = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError) as error:
        opened(tmp_path, content)
    assert found in str(error.value)
    assert str(tmp_path / "m.gguf") in str(error.value)


def test_hand_made_files_are_sound_unbroken(tmp_path: Path) -> None:
    for version in (2, 3):
        assert opened(tmp_path, build(version=version)).tensors["w"].type == tensor("f32", 8)
    assert opened(tmp_path, build(infos=[])).tensors == {}
    many = [info("b", offset=32), info("a")]  # Offsets in any order, with a gap at the end.
    assert set(opened(tmp_path, build(infos=many, data=bytes(100))).tensors) == {"a", "b"}
    narrow = [ARCHITECTURE, pair("general.alignment", 4, struct.pack("<I", 1))]
    assert opened(tmp_path, build(pairs=narrow, alignment=1)).tensors["w"].data.nbytes == 32


def test_long_names_are_shortened_in_messages(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as error:
        opened(tmp_path, build(infos=[info(name="n" * 100_000, kind=15)]))
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf does not exist; check the path"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="is a folder"):
        read_gguf(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path / "nul\0byte")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path / ("n" * 5000))
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelFileError, match="not a regular file"):
            read_gguf(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(ModelFileError, match="cannot be read"):
            read_gguf(tmp_path / "loop")


def test_truncated_at_any_byte(sound: Path, tmp_path: Path) -> None:
    whole = sound.read_bytes()
    last = max(item.data_offset + item.n_bytes for item in gguf.GGUFReader(sound).tensors)
    path = tmp_path / "m.gguf"
    for size in range(last):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            read_gguf(path)
    path.write_bytes(whole[:last])
    read_gguf(path)


def read_all(path: Path) -> None:
    """Open the file and touch every byte it promises; only our own errors may come out."""
    try:
        model = read_gguf(path)
    except HotloopError:
        return
    for weight in model.tensors.values():
        assert weight.data.nbytes == weight.type.nbytes
        weight.data.sum()


edits = st.lists(
    st.tuples(
        st.integers(0, 2**16),
        st.sampled_from(["flip", "insert", "delete", "u32", "u64"]),
        st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(edits=edits)
def test_fuzz_mutations(sound: Path, tmp_path: Path, edits: list[tuple[int, str, int]]) -> None:
    content = bytearray(sound.read_bytes())
    for place, kind, value in edits:
        at = place % len(content)
        if kind == "flip":
            content[at] ^= value & 255 or 1
        elif kind == "insert":
            content[at:at] = value.to_bytes(8, "little")[: 1 + value % 8]
        elif kind == "delete":
            del content[at : at + 1 + value % 8]
        else:
            size = 4 if kind == "u32" else 8
            content[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    (tmp_path / "m.gguf").write_bytes(content)
    read_all(tmp_path / "m.gguf")


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    tail=st.binary(max_size=200),
)
def test_fuzz_random_bytes(tmp_path: Path, counts: tuple[int, int], tail: bytes) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts)
    for content in (tail, head + tail, head + ARCHITECTURE + tail):
        (tmp_path / "m.gguf").write_bytes(content)
        read_all(tmp_path / "m.gguf")


def test_fields_are_checked_where_they_are_asked_for(sound: Path) -> None:
    model = read_gguf(sound)
    assert model.require("a.u8", int) == 200
    assert model.require("a.u8", float) == 200.0
    assert model.optional("a.none", str, None) is None
    assert model.optional("a.text", str, "").startswith("naïve")
    with pytest.raises(ModelFileError, match=r"does not say a\.none, which a llama model needs"):
        model.require("a.none", int)
    with pytest.raises(ModelFileError, match=r"gives a\.text as str .* where int is expected"):
        model.require("a.text", int)
    with pytest.raises(ModelFileError, match=r"gives a\.yes as bool True, where int"):
        model.optional("a.yes", int, 0)
