"""AWQ, GPTQ, compressed-tensors and FP8 files: packed here by the published formulas, one number
after the other, and read back to the numbers that they stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from jit import aligned
from prequantised import K, N, Tensors, folder, numbers, quantised_folder, words
from safetensors.numpy import load_file, save_file

from hotloop import load
from hotloop.cli.main import main
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.ir.formats import dequantise
from hotloop.ir.grouped import e4m3
from hotloop.kernels.pack import pack, packed_bytes
from hotloop.util.errors import HotloopError, ModelFileError, UnsupportedError


def read(path: Path) -> np.ndarray:
    """The values of layer.weight; what kernels read is packed, too, without an error."""
    model = read_hf_folder(path)
    assert set(model.tensors) == {"layer.weight", "norm.weight"}
    weight = model.tensors["layer.weight"]
    data = weight.data
    assert data.nbytes == weight.type.nbytes
    pack(data, weight.type, aligned(packed_bytes(weight.type)))
    weight.release()
    np.testing.assert_array_equal(weight.data, data)
    return dequantise(data, weight.type)


def expected(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    """w[n, k] in float64, rounded once."""
    values = np.empty((N, K))
    for k in range(K):
        values[:, k] = scales[k // group].astype(np.float64) * (codes[k] - zeros[k // group])
    return values.astype(np.float32)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize(("bits", "order"), [(4, [0, 2, 4, 6, 1, 3, 5, 7]), (8, [0, 2, 1, 3])])
def test_awq(tmp_path: Path, bits: int, order: list[int], group: int) -> None:
    codes, zeros, scales = numbers(bits, group)
    tensors = {"qweight": words(codes, bits, order), "qzeros": words(zeros, bits, order)}
    config = {"quant_method": "awq", "bits": bits, "group_size": group, "version": "gemm"}
    path = folder(tmp_path, tensors | {"scales": scales}, config)
    np.testing.assert_array_equal(read(path), expected(codes, zeros, scales, group))


@pytest.mark.parametrize("order", [None, "trivial"])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(tmp_path: Path, bits: int, group: int, version: str, order: str | None) -> None:
    size = K if group == -1 else group
    codes, zeros, scales = numbers(bits, size)
    less = 1 if version == "gptq" else 0
    tensors = {
        "qweight": words(codes.T, bits).T,
        "qzeros": words(zeros - less, bits),
        "scales": scales,
    }
    if order:
        tensors["g_idx"] = (np.arange(K) // size).astype(np.int32)
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": order is not None,
        "checkpoint_format": version,
    }
    path = folder(tmp_path, tensors, config)
    np.testing.assert_array_equal(read(path), expected(codes, zeros, scales, size))


COMPRESSED = {"quant_method": "compressed-tensors"}


@pytest.mark.parametrize("zero", [None, "packed", "int8"])
@pytest.mark.parametrize("group", [64, K])
@pytest.mark.parametrize("bits", [4, 8])
def test_pack_quantized(tmp_path: Path, bits: int, group: int, zero: str | None) -> None:
    codes, zeros, scales = numbers(bits, group)
    half = 1 << (bits - 1)
    tensors = {
        "weight_packed": words(codes.T, bits),
        "weight_scale": scales.T.astype(np.float32),
        "weight_shape": np.array([N, K]),
    }
    if zero is None:
        zeros = np.full_like(zeros, half)
    elif zero == "packed":
        tensors["weight_zero_point"] = words(zeros, bits).T
    else:
        tensors["weight_zero_point"] = (zeros.T - half).astype(np.int8)
    path = folder(tmp_path, tensors, COMPRESSED)
    np.testing.assert_array_equal(read(path), expected(codes, zeros, scales, group))


@pytest.mark.parametrize("shape", [(), (1,), (N,), (N, 1), (N, 4)])
def test_int_quantized(tmp_path: Path, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (N, K)).astype(np.int8)
    scale = random.normal(0, 0.01, shape).astype(np.float32)
    tensors = {"weight": weight, "weight_scale": scale, "input_scale": np.ones(1, np.float32)}
    path = folder(tmp_path, tensors, COMPRESSED)
    spread = scale.reshape(-1, 1) if len(shape) < 2 else np.repeat(scale, K // shape[1], axis=1)
    np.testing.assert_array_equal(read(path), spread * weight.astype(np.float32))


@pytest.mark.parametrize("shape", [(1,), (N, 1), (2, 4)])
@pytest.mark.parametrize("method", ["compressed-tensors", "fp8"])
def test_fp8(tmp_path: Path, method: str, shape: tuple[int, ...]) -> None:
    """One scale, one for a row, and one for blocks of 8 rows and 64 columns."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (N, K)).astype(np.uint8)
    codes[(codes & 127) == 127] = 0
    scale = random.normal(0, 0.01, shape).astype(np.float32)
    name = "weight_scale_inv" if method == "fp8" else "weight_scale"
    config = {"quant_method": method}
    path = folder(tmp_path, {"weight": codes, name: scale}, config, fp8=("weight",))
    if shape == (2, 4):
        scale = np.repeat(np.repeat(scale, 8, axis=0), 64, axis=1)
    np.testing.assert_array_equal(read(path), scale * e4m3(codes))


def test_e4m3_by_its_definition() -> None:
    for code in range(256):
        sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
        if exponent == 0:
            number = fraction / 8 * 2.0**-6
        else:
            number = (1 + fraction / 8) * 2.0 ** (exponent - 7)
        value = e4m3(np.array([code], np.uint8))[0]
        if code & 127 == 127:
            assert np.isnan(value)
        else:
            assert value == (-number if sign else number)
    assert e4m3(np.array([0x7E], np.uint8))[0] == 448


def awq_parts() -> Tensors:
    codes, zeros, scales = numbers(4, 64)
    return {"qweight": words(codes, 4), "qzeros": words(zeros, 4), "scales": scales}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
Change = Callable[[Tensors], object]

REFUSED: dict[str, tuple[type[HotloopError], dict[str, Any], Change, str]] = {
    "another method": (UnsupportedError, {"quant_method": "hqq"}, len, "quantised with 'hqq'"),
    "3 bits": (UnsupportedError, AWQ | {"bits": 3}, len, "quantised to 3 bits"),
    "gemv": (UnsupportedError, AWQ | {"version": "GEMV"}, len, "AWQ's layout 'gemv'"),
    "no zeros": (ModelFileError, AWQ, lambda t: t.pop("qzeros"), "layer has no qzeros"),
    "another group": (ModelFileError, AWQ | {"group_size": 32}, len, r"should be \[8,2\] for 4"),
    "a group of 0": (ModelFileError, AWQ | {"group_size": 0}, len, "in groups of 0"),
    "GPTQ's shape": (ModelFileError, GPTQ, len, r"layer.qweight I32\[256,2\] should be \["),
    "odd groups": (
        UnsupportedError,
        AWQ | {"group_size": 16},
        lambda t: t.update(
            qzeros=np.zeros((16, 2), np.int32), scales=np.zeros((16, 16), np.float16)
        ),
        "256 columns in groups of 16",
    ),
    "codes of another dtype": (
        UnsupportedError,
        AWQ,
        lambda t: t.update(qweight=t["qweight"].astype(np.float32)),
        r"stores layer.qweight F32\[256,2\]; hotloop reads I32",
    ),
    "no config": (UnsupportedError, {}, len, "'layer.qweight' as I32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    error, config, change, found = REFUSED[case]
    tensors = awq_parts()
    change(tensors)
    with pytest.raises(error, match=found) as caught:
        read_hf_folder(folder(tmp_path, tensors, config))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda t: t.pop("weight_scale"), "layer has no weight_scale"),
        (lambda t: t.pop("weight_shape"), "no weight_shape of two numbers"),
        (lambda t: t.update(weight_shape=np.array([N, K + 8])), r"does not hold \[16,264\] codes"),
        (lambda t: t.update(weight_shape=np.array([N, 0])), "does not hold"),
        (lambda t: t.update(weight_scale=np.ones((N + 1, 1), np.float32)), "does not fit a weight"),
    ],
)
def test_parts_that_disagree_are_named(tmp_path: Path, change: Change, found: str) -> None:
    codes, _, scales = numbers(4, 64)
    tensors: Tensors = {
        "weight_packed": words(codes.T, 4),
        "weight_scale": scales.T.astype(np.float32),
        "weight_shape": np.array([N, K]),
    }
    change(tensors)
    with pytest.raises(ModelFileError, match=found):
        read_hf_folder(folder(tmp_path, tensors, COMPRESSED))


def test_nan_weights_are_damage(tmp_path: Path) -> None:
    tensors = {"weight": np.full((N, K), 0xFF, np.uint8), "weight_scale": np.ones(1, np.float32)}
    path = folder(tmp_path, tensors, COMPRESSED, fp8=("weight",))
    with pytest.raises(ModelFileError, match="holds numbers that are none"):
        read(path)


@pytest.mark.parametrize("method", ["gptq", "compressed-tensors"])
def test_a_model_runs(tmp_path: Path, method: str) -> None:
    quantised, plain = quantised_folder(tmp_path, method)
    ids = [1, 5, 9, 2, 7, 30, 11]
    with load(quantised, 2, activations="f32", context=64) as model:
        formats = {value.type.format.name for value in model.graph.weights}
        assert formats == {"u4_32", "f32"}
        found = model.logits(ids).copy()
    with load(plain, 2, activations="f32", context=64) as model:
        np.testing.assert_allclose(found, model.logits(ids), rtol=1e-4, atol=1e-4)
    assert main(["inspect", str(quantised)]) == 0


def test_biases_of_zeros_are_none(tmp_path: Path) -> None:
    """AutoGPTQ writes them for models whose config says that they have no biases."""
    path, _ = quantised_folder(tmp_path, "gptq")
    tensors = load_file(path / "model.safetensors")
    rows = {name: t.shape[1] for name, t in tensors.items() if name.endswith("scales")}
    biases = {name.replace("scales", "bias"): np.zeros(n, "f2") for name, n in rows.items()}
    expected = set(read_hf_folder(path).tensors)
    save_file(tensors | biases, path / "model.safetensors")
    assert set(read_hf_folder(path).tensors) == expected
    biases["model.layers.2.self_attn.k_proj.bias"][5] = 1
    save_file(tensors | biases, path / "model.safetensors")
    more = {f"model.layers.{i}.self_attn.k_proj.bias" for i in range(3)}
    assert set(read_hf_folder(path).tensors) == expected | more


def test_gpt_oss_in_mxfp4_is_the_model_of_its_numbers(tmp_path: Path) -> None:
    """The tiny model's experts rounded to MXFP4, as gpt-oss stores them and as plain numbers."""
    source = DATA / "tiny" / "gpt_oss"
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    random = np.random.default_rng(0)
    plain, stored = dict(tensors), dict(tensors)
    for name in [n for n in tensors if n.endswith("gate_up_proj")]:
        experts, columns, rows = tensors[name].shape
        blocks = random.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = random.integers(120, 124, blocks.shape[:3], np.uint8)
        codes = np.empty((*blocks.shape[:3], 32), np.uint8)
        codes[..., ::2], codes[..., 1::2] = blocks & 15, blocks >> 4
        e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        values = np.where(codes < 8, 1, -1) * e2m1[codes & 7] * 2.0 ** (scales[..., None] - 127.0)
        values = values.reshape(experts, rows, columns).transpose(0, 2, 1)
        plain[name] = np.ascontiguousarray(values.astype(np.float32))
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    logits = []
    for which, held in (("plain", plain), ("mxfp4", stored)):
        folder = tmp_path / which
        folder.mkdir()
        save_file(held, folder / "model.safetensors")
        quantised = {"quantization_config": {"quant_method": "mxfp4"}} if held is stored else {}
        (folder / "config.json").write_text(json.dumps(config | quantised))
        with load(folder, threads=1, activations="f32", context=64) as model:
            logits.append(model.logits([1, 2, 3, 4, 5]))
    np.testing.assert_array_equal(logits[1], logits[0])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"w_scales": None}, "w has no layer.w_scales; download the model again"),
        ({"w_blocks": None}, "w has no layer.w_blocks; download the model again"),
        ({"w_scales": np.zeros((2, 8, 3), np.uint8)}, "no blocks of 16 bytes with a scale each"),
        ({"w_else": np.zeros(4, np.uint8)}, "stores tensor 'layer.w_else' as U8"),
    ],
)
def test_mxfp4_that_does_not_fit(
    change: dict[str, np.ndarray | None], text: str, tmp_path: Path
) -> None:
    whole = {"w_blocks": np.zeros((2, 8, 2, 16), np.uint8), "w_scales": np.zeros((2, 8, 2), "u1")}
    tensors = {name: value for name, value in (whole | change).items() if value is not None}
    with pytest.raises(HotloopError, match=text):
        read_hf_folder(folder(tmp_path, tensors, {"quant_method": "mxfp4"}))
