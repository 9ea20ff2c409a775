"""Pre-quantised checkpoints for tests, packed by the published formulas, one number at a time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conftest import DATA
from safetensors.numpy import load_file, save_file

N, K = 16, 256
Tensors = dict[str, np.ndarray]


def folder(path: Path, tensors: Tensors, config: dict[str, Any], fp8: tuple[str, ...] = ()) -> Path:
    """Tensors of `layer`, in a folder; NumPy has no e4m3, so `fp8` get it in the header."""
    tensors = {f"layer.{name}": np.ascontiguousarray(value) for name, value in tensors.items()}
    tensors["norm.weight"] = np.ones(4, np.float32)
    save_file(tensors, path / "model.safetensors")
    if fp8:
        content = (path / "model.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        for name in fp8:
            header[f"layer.{name}"]["dtype"] = "F8_E4M3"
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        rest = content[8 + size :]
        (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + rest)
    (path / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": config})
    )
    return path


def words(codes: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Codes [rows, columns] as int32 [rows, columns · bits / 32], neighbour order[i] at place i."""
    count = 32 // bits
    packed = np.zeros((codes.shape[0], codes.shape[1] // count), np.uint32)
    for row in range(codes.shape[0]):
        for column in range(packed.shape[1]):
            for i, neighbour in enumerate(order or range(count)):
                code = int(codes[row, column * count + neighbour])
                packed[row, column] |= np.uint32(code << (bits * i))
    return packed.view(np.int32)


def numbers(bits: int, group: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [K, N], zeros and float16 scales [K / group, N]."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (K, N))
    zeros = random.integers(1, 1 << bits, (K // group, N))
    return codes, zeros, random.normal(0, 0.01, (K // group, N)).astype(np.float16)


Groups = Callable[[str, int], np.ndarray]


def neighbours(module: str, columns: int) -> np.ndarray:
    """The group of each column: 32 neighbours to a group."""
    return np.arange(columns) // 32


def quantised_folder(
    path: Path, method: str, groups: Groups = neighbours, bits: int = 4, source: str = "llama"
) -> tuple[Path, Path]:
    """A tiny model with its projections quantised, and with what they then mean as float32.

    `groups` gives the group of each column of a module. Zeros are in the middle, but for 8 bits.
    """
    config = json.loads((DATA / "tiny" / source / "config.json").read_text())
    quantised: Tensors = {}
    plain: Tensors = {}
    for name, values in load_file(DATA / "tiny" / source / "model.safetensors").items():
        if not name.endswith("_proj.weight") or values.shape[1] % 32:
            quantised[name] = plain[name] = values
            continue
        module = name.removesuffix(".weight")
        of_column = groups(module, values.shape[1])
        each = [values[:, of_column == group] for group in range(of_column.max() + 1)]
        half, low = 1 << (bits - 1), -np.stack([v.min(axis=1) for v in each], axis=1)
        largest = np.stack([np.abs(v).max(axis=1) for v in each], axis=1)
        scales = (largest / (half - 1)).astype(np.float16)
        zeros = np.full(scales.shape, half)
        if bits == 8:
            zeros = np.clip(np.rint(low / scales), 1, 255).astype(np.int64)
        spread, middle = scales.astype(np.float32)[:, of_column], zeros[:, of_column]
        codes = np.clip(np.rint(values / spread) + middle, 0, 2 * half - 1).astype(np.int64)
        plain[name] = (spread * (codes - middle)).astype(np.float32)
        if method == "gptq":
            quantised[f"{module}.qweight"] = words(codes, bits).T
            quantised[f"{module}.qzeros"] = words(zeros.T - 1, bits)
            quantised[f"{module}.scales"] = scales.T
            quantised[f"{module}.g_idx"] = of_column.astype(np.int32)
        else:
            quantised[f"{module}.weight_packed"] = words(codes, bits)
            quantised[f"{module}.weight_scale"] = scales
            quantised[f"{module}.weight_zero_point"] = words(zeros.T, bits).T
            quantised[f"{module}.weight_shape"] = np.array(values.shape)
            quantised[f"{module}.weight_g_idx"] = of_column.astype(np.int32)
    settings = {"quant_method": method, "bits": bits, "group_size": 32, "desc_act": True}
    folders = path / "quantised", path / "plain"
    for folder, tensors in zip(folders, (quantised, plain), strict=True):
        folder.mkdir(parents=True)
        tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        save_file(tensors, folder / "model.safetensors")
    (folders[1] / "config.json").write_text(json.dumps(config))
    (folders[0] / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folders
