"""Packed files (`.hotloop`): a model as `hotloop convert` writes it, ready for its kernels.

    file    = "HOTLOOP\\n" u32:version u32:0 u64:bytes of the header  sha256 of the header
              header  padding  blobs
    header  = JSON: what is below, and each blob as [offset, bytes, sum]
    blobs   = texts, small tensors and weights, each at a multiple of 64 from 2 MiB on

    texts     the small files of the original: a GGUF file's header under "gguf", a folder's
              config.json, tokenizer.json and so on; so the file alone suffices
    tensors   the original's directory: name → [format, shape, blob of the vectors]
    weights   the weights of the graph, by its names: [format, shape, blob], packed where kernels
              read them packed
    quantised the format to which matrices were rounded, or null
    layouts   for each format the fingerprint of its packed layout (`hotloop.kernels.layout`)

A packed file is written once and read many times; it is no format for exchange, and a change of a
layout makes it stale. Loading checks the header, the length of the file and the sum of each blob.
"""

import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.packed import Packed, checksum
from hotloop.backends.cpu.places import packed_weights
from hotloop.frontends import gguf
from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.hf_folder import CONFIG, parse_json
from hotloop.frontends.model_file import ModelFile, WeightData, map_file
from hotloop.ir.encode import ENCODED
from hotloop.ir.types import FORMATS, TensorType
from hotloop.kernels.layout import layout_of
from hotloop.kernels.pack import matrix, pack, packed_bytes
from hotloop.util.errors import ModelFileError, UnsupportedError, UsageError

MAGIC = b"HOTLOOP\n"
VERSION = 1
FIRST_BLOB = 2 << 20
ALIGN = 64
GGUF = "gguf"
"""The text that a model from a GGUF file has: that file's header."""

_START = struct.Struct("<8sIIQ32s")
_LARGEST_HEADER = FIRST_BLOB - _START.size
_STEP = Step(context=16)  # any: the weights of all steps are the same

Bytes = NDArray[np.uint8]
Progress = Callable[[int, int | None, str], None]


def is_packed_file(path: Path) -> bool:
    """Whether the file at `path` starts as a packed file does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


# Writing.


def write_packed_file(
    decoder: Decoder, target: Path, progress: Progress = lambda done, total, what: None
) -> None:
    """Write the model of `decoder` to `target`, completely or not at all.

    Raises `UsageError` where that cannot be done.
    """
    if decoder.file.packed:
        raise UsageError(f"{decoder.file.path} is packed already; copy it instead.")
    try:
        with _replacing(target) as file:
            _Writer(decoder, file, progress).write()
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror or error}); give another file."
        ) from None


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that takes the name `target` once it is complete and on disk."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


class _Writer:
    """Writes blobs as they come, and at last the header that tells where they are."""

    def __init__(self, decoder: Decoder, file: BinaryIO, progress: Progress) -> None:
        self.decoder = decoder
        self.file = file
        self.progress = progress
        self.end = FIRST_BLOB
        self.graph = decoder.graph(_STEP)

    def write(self) -> None:
        header = {
            "architecture": self.decoder.file.architecture,
            "quantised": self.decoder.quantised,
            "texts": {name: self._blob(data) for name, data in self.decoder.file.texts().items()},
            "tensors": {name: self._tensor(t) for name, t in self.decoder.file.tensors.items()},
            "weights": dict(self._weights()),
            "layouts": {name: layout_of(name) for name in self._packed_formats()},
            "size": self.end,
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > _LARGEST_HEADER:
            raise UnsupportedError(f"{self.decoder.file.path} has too many tensors to convert.")
        self.file.truncate(self.end)
        self.file.seek(0)
        self.file.write(_START.pack(MAGIC, VERSION, 0, len(text), sha256(text).digest()) + text)

    def _blob(self, data: Bytes | bytes) -> list[int]:
        """Write `data` behind all others, padded to whole words."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        padded = np.zeros(-(-array.nbytes // 8) * 8, np.uint8)
        padded[: array.nbytes] = array
        offset = self.end
        self.file.seek(offset)
        self.file.write(padded.data)
        self.end = -(-(offset + padded.nbytes) // ALIGN) * ALIGN
        return [offset, array.nbytes, checksum(padded)]

    def _tensor(self, tensor: WeightData) -> list[Any]:
        """Vectors are kept as they were: what a config is read from is among them."""
        blob = self._blob(tensor.data) if len(tensor.type.shape) == 1 else None
        return [tensor.type.format.name, tensor.type.shape, blob]

    def _packed_formats(self) -> set[str]:
        return {self.graph.types[name].format.name for name in packed_weights(self.graph)}

    def _weights(self) -> Iterator[tuple[str, list[Any]]]:
        """In the order of the graph, as a step reads them."""
        packed = packed_weights(self.graph)
        names = [w.name for w in self.graph.weights if w.name in self.decoder.tensors]
        total, done = sum(self.graph.types[name].nbytes for name in names), 0
        for name in names:
            type, data = self.graph.types[name], self.decoder.weight(name, _STEP).data
            if name in packed:
                out = np.zeros(packed_bytes(matrix(type)), np.uint8)
                pack(data, matrix(type), out)
            else:
                out = data
            self.decoder.release(name)
            yield name, [type.format.name, type.shape, self._blob(out)]
            done += type.nbytes
            self.progress(done, total, "convert")


# Reading.


def read_packed_file(path: Path) -> ModelFile:
    """Open the packed file at `path`.

    Raises `ModelFileError` for one that is damaged, or that other code packed.
    """
    return _Reader(path).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.map = map_file(path)
        self.header: dict[str, Any] = {}

    def damaged(self, found: str) -> NoReturn:
        raise ModelFileError(f"{self.path} is damaged: {found}; convert the model again.")

    def read(self) -> ModelFile:
        try:
            self._read_header()
            texts = {name: self._bytes(blob) for name, blob in self.header["texts"].items()}
            tensors = {name: self._tensor(name, *t) for name, t in self.header["tensors"].items()}
            weights = {name: self._weight(*w) for name, w in self.header["weights"].items()}
            architecture = str(self.header["architecture"])
            quantised = self.header["quantised"]
            if quantised not in (None, *ENCODED):
                self.damaged(f"its matrices were rounded to {quantised!r:.40}")
            metadata = self._metadata(texts)
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            self.damaged(f"its header is not of its form ({type(error).__name__}: {error})")
        return ModelFile(
            self.path,
            architecture,
            metadata,
            MappingProxyType(tensors),
            texts=lambda: texts,
            packed=MappingProxyType(weights),
            quantised=quantised,
        )

    def _metadata(self, texts: Mapping[str, bytes]) -> Mapping[str, object]:
        if GGUF in texts:
            return gguf.parse_header(self.path, texts[GGUF]).metadata
        return MappingProxyType(parse_json(self.path / CONFIG, texts[CONFIG]))

    def _read_header(self) -> None:
        if self.map[: len(MAGIC)] != MAGIC:
            raise ModelFileError(f"{self.path} is not a packed file; give one by hotloop convert.")
        if len(self.map) < _START.size:
            self.damaged("it ends within its header")
        _, version, _, nbytes, digest = _START.unpack_from(self.map)
        if version != VERSION:
            self._stale(f"is version {version}, and this hotloop reads {VERSION}")
        text = self.map[_START.size : _START.size + min(nbytes, _LARGEST_HEADER)]
        if sha256(text).digest() != digest:
            self.damaged("its header is not what was written")
        self.header = json.loads(text)
        if self.header["size"] != len(self.map):
            self.damaged(f"it has {len(self.map)} bytes, not {self.header['size']}")
        for name, layout in self.header["layouts"].items():
            if name not in FORMATS or layout_of(name) != layout:
                self._stale(f"packs {name:.20} in another way than this hotloop")

    def _stale(self, found: str) -> NoReturn:
        raise ModelFileError(f"{self.path} {found}; convert the model again.")

    def _bytes(self, blob: list[int]) -> bytes:
        offset, nbytes, total = self._checked(blob)
        padded = -(-nbytes // 8) * 8
        data = np.frombuffer(self.map, np.uint8)[offset : offset + padded]
        if checksum(data) != total:
            self.damaged(f"the bytes from {offset} on are not what was written")
        return bytes(data[:nbytes])

    def _checked(self, blob: list[int]) -> tuple[int, int, int]:
        offset, nbytes, total = blob
        if min(offset - FIRST_BLOB, nbytes, len(self.map) - offset - nbytes) < 0:
            self.damaged(f"{nbytes} bytes from {offset} on are outside of it")
        return offset, nbytes, total

    def _tensor(
        self, name: str, format: str, shape: list[int], blob: list[int] | None
    ) -> WeightData:
        type = TensorType(FORMATS[format], tuple(shape))
        if blob is None:
            return WeightData(name, type, self._gone)
        return WeightData(name, type, np.frombuffer(self._bytes(blob), np.uint8))

    def _gone(self) -> Bytes:
        raise UnsupportedError(
            f"{self.path} holds its weights in packed form only; use the file that it was "
            "converted from."
        )

    def _weight(self, format: str, shape: list[int], blob: list[int]) -> Packed:
        offset, nbytes, total = self._checked(blob)
        type = TensorType(FORMATS[format], tuple(shape))
        return Packed(self.path, type, offset, nbytes, total)
