"""What lies in a model file or folder, whether hotloop can run it or not."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from hotloop.frontends import gguf, hf_folder
from hotloop.frontends.gguf_split import split_count, split_paths
from hotloop.frontends.model_file import map_file
from hotloop.frontends.packed_file import VERSION, is_packed_file, read_packed_file
from hotloop.ir.types import FORMATS, TensorType
from hotloop.util.errors import ModelFileError


@dataclass(frozen=True)
class Stored:
    """A tensor as its file lists it; `nbytes` are those that it takes there."""

    name: str
    format: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=object))


@dataclass(frozen=True)
class Inventory:
    """`kind` names the container and its version, `architecture` is "" where the file has none."""

    path: Path
    kind: str
    architecture: str
    metadata: Mapping[str, object]
    tensors: tuple[Stored, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)


def take_inventory(path: Path) -> Inventory:
    """List what the file or folder at `path` holds.

    Raises `ModelFileError` where it is neither a GGUF file nor a Hugging Face folder, or damaged.
    """
    if path.is_dir():
        return _of_folder(path)
    return _of_packed(path) if is_packed_file(path) else _of_gguf(path)


def _of_gguf(path: Path) -> Inventory:
    header = gguf.read_header(path)
    count = split_count(header.metadata)
    headers = [header]
    if count > 1:
        headers = [gguf.read_header(part) for part in split_paths(path, count)]
    tensors = tuple(
        Stored(entry.name, entry.format.lower(), entry.shape, nbytes)
        for part in headers
        for entry, nbytes in zip(part.entries, _sizes(part), strict=True)
    )
    metadata = headers[0].metadata
    architecture = metadata.get("general.architecture")
    name = architecture if isinstance(architecture, str) else ""
    kind = f"GGUF {header.version}" + (f" in {count} files" if count > 1 else "")
    return Inventory(path, kind, name, metadata, tensors)


def _sizes(header: gguf.Header) -> list[int]:
    """Bytes of each entry: by its format, else up to the next tensor or the end of the file."""
    ends = sorted({header.data_bytes, *(entry.offset for entry in header.entries)})
    following = dict(pairwise(ends))
    sizes = []
    for entry in header.entries:
        format = FORMATS.get(entry.format.lower())
        if format is not None and entry.shape[-1] % format.block == 0:
            sizes.append(TensorType(format, entry.shape).nbytes)
        else:
            sizes.append(following.get(entry.offset, entry.offset) - entry.offset)
    return sizes


def _of_packed(path: Path) -> Inventory:
    """The tensors of the file that it was converted from."""
    file = read_packed_file(path)
    tensors = tuple(
        Stored(name, tensor.type.format.name, tensor.type.shape, tensor.type.nbytes)
        for name, tensor in file.tensors.items()
    )
    return Inventory(path, f"hotloop {VERSION}", file.architecture, file.metadata, tensors)


def _of_folder(path: Path) -> Inventory:
    config = hf_folder.read_json(path / hf_folder.CONFIG)
    architecture = config.get("model_type")
    name = architecture if isinstance(architecture, str) else ""
    tensors = tuple(
        tensor for file in hf_folder.weight_files(path) for tensor in _of_safetensors(file)
    )
    return Inventory(path, "Hugging Face folder", name, config, tensors)


def _of_safetensors(path: Path) -> Iterator[Stored]:
    """The tensors that a safetensors file lists, once the library has checked the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy"):
            data = map_file(path)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"{path} is damaged ({error}); download it again.") from None
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield Stored(name, entry["dtype"].lower(), tuple(entry["shape"]), end - start)
