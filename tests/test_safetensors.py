"""Hugging Face folders: equal to the `safetensors` package, and clear about what is missing."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.ir.formats import dequantise
from hotloop.ir.types import tensor
from hotloop.util.errors import HotloopError, ModelFileError, UnsupportedError

TINY = Path(__file__).parent / "data" / "tiny"


def folder(path: Path, weights: bytes | None = None, config: object = None) -> Path:
    """A folder at `path` with these files, made afresh."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    content = {"model_type": "llama"} if config is None else config
    (path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    if weights is not None:
        (path / "model.safetensors").write_bytes(weights)
    return path


def container(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("name", ["llama", "llama_tied", "llama3_rope"])
def test_equals_the_oracle(name: str) -> None:
    ours = read_hf_folder(TINY / name)
    theirs = safetensors.numpy.load_file(TINY / name / "model.safetensors")
    assert ours.architecture == "llama"
    assert ours.metadata["vocab_size"] == 131
    assert set(ours.tensors) == set(theirs)
    for key, weight in ours.tensors.items():
        assert weight.name == key
        np.testing.assert_array_equal(dequantise(weight.data, weight.type), theirs[key])
        assert not weight.data.flags.owndata
        assert not weight.data.flags.writeable


def test_every_format_and_odd_shapes(tmp_path: Path) -> None:
    half = np.array([[1.5, -2.0, 65504.0]], np.float16)
    brain = np.array([0x3F80, 0xC000], "<u2")  # 1.0 and -2.0
    header = {
        "h": entry("F16", [1, 3], 0, 6),
        "b": entry("BF16", [2, 1, 1], 6, 10),
        "one": entry("F32", [], 10, 14),
        "__metadata__": {"format": "pt"},
    }
    data = half.tobytes() + brain.tobytes() + struct.pack("<f", 0.25)
    model = read_hf_folder(folder(tmp_path / "m", container(header, data)))
    assert model.tensors["h"].type == tensor("f16", 1, 3)
    assert model.tensors["b"].type == tensor("bf16", 2, 1, 1)
    assert model.tensors["one"].type == tensor("f32")
    assert dequantise(model.tensors["h"].data, model.tensors["h"].type).tolist() == half.tolist()
    assert dequantise(model.tensors["b"].data, model.tensors["b"].type).ravel().tolist() == [1, -2]
    assert dequantise(model.tensors["one"].data, model.tensors["one"].type) == 0.25


def test_shards(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    values = {name: np.full((2, 2), index, np.float32) for index, name in enumerate("abc")}
    safetensors.numpy.save_file({"a": values["a"]}, path / "model-1.safetensors")
    safetensors.numpy.save_file({"b": values["b"], "c": values["c"]}, path / "model-2.safetensors")
    places = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": places}))
    model = read_hf_folder(path)
    for name, value in values.items():
        weight = model.tensors[name]
        np.testing.assert_array_equal(dequantise(weight.data, weight.type), value)

    (path / "model-2.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-2\.safetensors does not exist"):
        read_hf_folder(path)
    shutil.copy(path / "model-1.safetensors", path / "model-2.safetensors")
    with pytest.raises(ModelFileError, match="holds tensor 'a' twice"):
        read_hf_folder(path)
    for name in ("../secret.safetensors", "/etc/passwd", "", ".."):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelFileError, match=r"not a \.safetensors file name"):
            read_hf_folder(path)
    for bad in ("[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{"):
        index.write_text(bad)
        with pytest.raises(ModelFileError, match=r"index\.json"):
            read_hf_folder(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json does not exist"):
        read_hf_folder(tmp_path)
    with pytest.raises(ModelFileError, match=r"absent/config\.json does not exist"):
        read_hf_folder(tmp_path / "absent")
    with pytest.raises(ModelFileError, match=r"holds neither model\.safetensors nor"):
        read_hf_folder(folder(tmp_path / "m"))


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("", "is empty"),
        ("{", "not valid JSON"),
        ("[]", "does not hold a JSON object"),
        ("{}", "does not name its architecture"),
        ('{"model_type": 3}', "does not name its architecture"),
        ("[" * 100_000, "not valid JSON"),
        ('{"model_type": "llama", "x": ' + "1" * 10_000 + "}", "not valid JSON"),
    ],
)
def test_bad_configs(config: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=found) as error:
        read_hf_folder(folder(tmp_path / "m", container({}), config))
    assert "\n" not in str(error.value)
    assert "config.json" in str(error.value)


def test_config_that_is_not_utf8(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", container({}))
    (path / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(ModelFileError, match="not valid JSON"):
        read_hf_folder(path)


GOOD = {"w": entry("F32", [2, 2], 0, 16)}

DAMAGED = {
    "empty": b"",
    "three bytes": b"\0\0\0",
    "no header": struct.pack("<Q", 100),
    "absurd header length": struct.pack("<Q", 2**64 - 1) + b"{}",
    "header not JSON": container(b"{", bytes(16)),
    "header not UTF-8": container(b'{"\xff": 1}', bytes(16)),
    "header not an object": container([], bytes(16)),
    "data missing": container(GOOD, bytes(15)),
    "data left over": container(GOOD, bytes(17)),
    "offsets backwards": container({"w": entry("F32", [2, 2], 16, 0)}, bytes(16)),
    "offsets too short": container({"w": entry("F32", [2, 2], 0, 12)}, bytes(12)),
    "overlap": container({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "hole": container({"a": entry("F32", [2], 4, 12)}, bytes(12)),
    "overflowing shape": container({"w": entry("F32", [2**62, 2**62], 0, 16)}, bytes(16)),
    "negative shape": container({"w": entry("F32", [-1], 0, 16)}, bytes(16)),
    "unknown dtype": container({"w": entry("F99", [4], 0, 16)}, bytes(16)),
    "dimension 0": container({"w": entry("F32", [0, 4], 0, 0)}),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_clear_sentence(case: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", DAMAGED[case])
    with pytest.raises(ModelFileError) as error:
        read_hf_folder(path)
    message = str(error.value)
    assert message.startswith(str(path / "model.safetensors"))
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("dtype", ["F64", "I64", "U8", "F8_E4M3", "BOOL"])
def test_unsupported_formats_are_named(dtype: str, tmp_path: Path) -> None:
    size = {"F64": 8, "I64": 8}.get(dtype, 1)
    path = folder(tmp_path / "m", container({"w": entry(dtype, [4], 0, 4 * size)}, bytes(4 * size)))
    with pytest.raises(UnsupportedError, match=f"'w' as {dtype}; hotloop reads F32, F16, BF16"):
        read_hf_folder(path)


edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=5)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(edits=edits, cut=st.integers(0, 400))
def test_fuzz(tmp_path: Path, edits: list[tuple[int, int]], cut: int) -> None:
    whole = bytearray(
        container(
            {"a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [5], 24, 34)}, bytes(range(34))
        )
    )
    for at, byte in edits:
        whole[at % len(whole)] = byte
    try:
        model = read_hf_folder(folder(tmp_path / "m", bytes(whole[: cut or None])))
    except HotloopError:
        return
    for weight in model.tensors.values():
        assert weight.data.nbytes == weight.type.nbytes
        weight.data.sum()
