"""Hugging Face folders: a `config.json` next to `model.safetensors`, in one file or in shards.

The `safetensors` library checks a file's header, that every tensor's bytes fit its shape, and that
the tensors cover the rest of the file without holes. So the place of each follows from the order
and the sizes, and the weights are views of our own map of the file: nothing is copied.
"""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hotloop.frontends.model_file import ModelFile, map_file
from hotloop.frontends.prequantised import weights_of
from hotloop.frontends.stored import DTYPES, Stored
from hotloop.util.errors import ModelFileError, UnsupportedError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: What belongs to the weights in a folder, where it is there.
TEXTS = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)


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
    stored: dict[str, Stored] = {}
    for file in weight_files(path):
        for tensor in _read_safetensors(file):
            if tensor.name in stored:
                raise ModelFileError(
                    f"{path} holds tensor {tensor.name!r:.80} twice; download it again."
                )
            stored[tensor.name] = tensor
    weights = weights_of(path, stored, config.get("quantization_config"))
    return ModelFile(
        path,
        architecture,
        MappingProxyType(config),
        MappingProxyType(weights),
        texts=lambda: read_texts(path),
    )


def read_texts(folder: Path) -> dict[str, bytes]:
    """The files of `TEXTS` that are in the folder."""
    return {name: bytes(map_file(folder / name)) for name in TEXTS if (folder / name).exists()}


def read_json(path: Path) -> dict[str, object]:
    """The object in the JSON file at `path`; raises `ModelFileError` where it holds none."""
    return parse_json(path, bytes(map_file(path)))


def parse_json(path: Path, content: bytes) -> dict[str, object]:
    """The object in `content`, which is that of the file at `path`."""
    try:
        value = json.loads(content)
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


def _read_safetensors(path: Path) -> Iterator[Stored]:
    from safetensors import SafetensorError, safe_open

    data = np.frombuffer(map_file(path), np.uint8)
    try:
        with safe_open(path, "numpy") as file:
            end = 8 + int(data[:8].view("<u8")[0])
            for name in file.offset_keys():
                entry = file.get_slice(name)
                dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
                _check_tensor(path, name, dtype, shape)
                start, end = end, end + prod(shape) * np.dtype(DTYPES[dtype]).itemsize
                yield Stored(name, dtype, shape, data[start:end])
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"{path} is damaged ({error}); download it again.") from None


def _check_tensor(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{path} stores tensor {name!r:.80} as {dtype}; hotloop reads "
            f"{', '.join(DTYPES)} here: use a file in one of these, or a GGUF file."
        )
    if 0 in shape:
        raise ModelFileError(
            f"{path} gives tensor {name!r:.80} a dimension of 0; download it again."
        )
