"""Hugging Face folders: a `config.json` next to `model.safetensors`, in one file or in shards.

The `safetensors` library checks a file's header, that every tensor's bytes fit its shape, and that
the tensors cover the rest of the file without holes. So the place of each follows from the order
and the sizes, and the weights are views of our own map of the file: nothing is copied.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hotloop.frontends.model_file import ModelFile, WeightData, map_file
from hotloop.ir.types import FORMATS, TensorType
from hotloop.util.errors import ModelFileError, UnsupportedError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUPPORTED = ("F32", "F16", "BF16")


def read_hf_folder(path: Path) -> ModelFile:
    """Open the Hugging Face folder at `path`; `metadata` is its `config.json`.

    Raises `ModelFileError` for a folder that lacks a file or holds a damaged one, and
    `UnsupportedError` for a tensor format that hotloop does not read.
    """
    config = read_json(path / CONFIG)
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise ModelFileError(
            f"{path / CONFIG} does not name its architecture (model_type); download it again."
        )
    tensors: dict[str, WeightData] = {}
    for file in weight_files(path):
        for weight in _read_safetensors(file):
            if weight.name in tensors:
                raise ModelFileError(
                    f"{path} holds tensor {weight.name!r:.80} twice; download it again."
                )
            tensors[weight.name] = weight
    return ModelFile(path, architecture, MappingProxyType(config), MappingProxyType(tensors))


def read_json(path: Path) -> dict[str, object]:
    """The object in the JSON file at `path`; raises `ModelFileError` where it holds none."""
    try:
        value = json.loads(bytes(map_file(path)))
    except (ValueError, RecursionError) as error:  # ValueError covers bad JSON and bad UTF-8.
        raise ModelFileError(f"{path} is not valid JSON ({error}); download it again.") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} does not hold a JSON object; download it again.")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or the shards that its index names."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        raise ModelFileError(
            f"{folder} holds neither {WEIGHTS} nor {INDEX}; download the safetensors weights."
        )
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFileError(f"{folder / INDEX} has no weight_map; download it again.")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        # A shard lies in the folder itself, nowhere else.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFileError(
                f"{folder / INDEX} names the shard {name!r:.80}, which is not a .safetensors file "
                "name; download it again."
            )
    return [folder / name for name in names]


def _read_safetensors(path: Path) -> Iterator[WeightData]:
    from safetensors import SafetensorError, safe_open

    data = np.frombuffer(map_file(path), np.uint8)
    try:
        with safe_open(path, "numpy") as file:
            end = 8 + int(data[:8].view("<u8")[0])
            for name in file.offset_keys():
                entry = file.get_slice(name)
                type = _tensor_type(path, name, entry.get_dtype(), tuple(entry.get_shape()))
                start, end = end, end + type.nbytes
                yield WeightData(name, type, data[start:end])
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"{path} is damaged ({error}); download it again.") from None


def _tensor_type(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> TensorType:
    if dtype not in SUPPORTED:
        raise UnsupportedError(
            f"{path} stores tensor {name!r:.80} as {dtype}; hotloop reads "
            f"{', '.join(SUPPORTED)} here: use a file in one of these, or a GGUF file."
        )
    if 0 in shape:
        raise ModelFileError(
            f"{path} gives tensor {name!r:.80} a dimension of 0; download it again."
        )
    return TensorType(FORMATS[dtype.lower()], shape)
