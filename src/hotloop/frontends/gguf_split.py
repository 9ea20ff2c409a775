"""Split GGUF: one model in several files, as `llama-gguf-split` and the `gguf` package write it.

The files are called NAME-00001-of-00003.gguf and so on. The first has the metadata; each has some
of the tensors, and says which file it is (`split.no`, from 0), of how many (`split.count`), and how
many tensors all of them have together (`split.tensors.count`).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hotloop.frontends.model_file import WeightData
from hotloop.util.errors import ModelFileError

MAX_FILES = 99999
_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

Part = tuple[Mapping[str, object], Mapping[str, WeightData]]
"""Metadata and tensors of one file."""


def split_count(metadata: Mapping[str, object]) -> int:
    """How many files the model is in, by the metadata of one of them."""
    count = metadata.get("split.count", 0)
    return count if isinstance(count, int) and count > 1 else 1


def split_paths(path: Path, count: int) -> list[Path]:
    """All files of the model of which `path` is one.

    Raises `ModelFileError` where the name of `path` is not that of one of `count` files, or where
    files are missing.
    """
    named = _NAME.fullmatch(path.name)
    if named is None or int(named[3]) != count or not 1 <= int(named[2]) <= count <= MAX_FILES:
        raise ModelFileError(
            f"{path} is one of {count} files of a model, and they must be called "
            f"NAME-00001-of-{count:05}.gguf and so on; give it the name that it had."
        )
    paths = [path.with_name(f"{named[1]}-{i:05}-of-{named[3]}.gguf") for i in range(1, count + 1)]
    missing = [other.name for other in paths if not other.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileError(
            f"{path} is one of {count} files of a model, and {missing[0]}{more} is missing; "
            "download it into the same folder."
        )
    return paths


def joined(paths: Sequence[Path], parts: Sequence[Part]) -> Mapping[str, WeightData]:
    """The tensors of all files; raises `ModelFileError` where these are not one model's."""
    tensors: dict[str, WeightData] = {}
    for number, (path, (metadata, held)) in enumerate(zip(paths, parts, strict=True)):
        found = metadata.get("split.no"), metadata.get("split.count")
        if found != (number, len(paths)):
            raise ModelFileError(
                f"{path} says that it is file {found[0]} (from 0) of {found[1]}, not {number} of "
                f"{len(paths)}; download it again."
            )
        twice = next((name for name in held if name in tensors), None)
        if twice is not None:
            raise ModelFileError(
                f"{path} holds tensor {twice!r:.80}, which a file before it holds, too; "
                "download it again."
            )
        tensors |= held
    announced = parts[0][0].get("split.tensors.count", len(tensors))
    if announced != len(tensors):
        raise ModelFileError(
            f"{paths[0]} and the files that belong to it hold {len(tensors)} tensors, not "
            f"{announced}; download them again."
        )
    return MappingProxyType(tensors)
