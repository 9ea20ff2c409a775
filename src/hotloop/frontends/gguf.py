"""GGUF files, versions 2 and 3: memory-mapped, every length checked against the file.

Layout (github.com/ggml-org/ggml/blob/master/docs/gguf.md), all little-endian:

    file     = "GGUF" u32:version u64:tensors u64:pairs  pair*  info*  padding  data
    pair     = string:key u32:type value
    info     = string:name u32:dims u64:dim* u32:type u64:offset    (innermost dimension first)
    string   = u64:bytes utf-8
    array    = u32:type u64:elements value*
    data     = tensors at their offsets, each a multiple of `general.alignment` (32 unless given)

Ours rather than the `gguf` package's because that one makes several NumPy arrays of every string:
it needs seconds where vocabularies are large. Here strings take one short loop, and a vocabulary of
150,000 tokens opens in about a tenth of a second.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.ggml_small import STORED, unpacked
from hotloop.frontends.gguf_split import joined, split_count, split_paths
from hotloop.frontends.model_file import ModelFile, WeightData, map_file
from hotloop.ir.types import FORMATS, TensorType
from hotloop.util.errors import ModelFileError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

# fmt: off
#: ggml's tensor types, at their numbers (`enum ggml_type` in ggml.h), with those since removed.
GGML_TYPES = (
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M",
    "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8",
    "IQ4_NL_8_8", "MXFP4", "NVFP4", "Q1_0",
)
SUPPORTED = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", *STORED,
)

#: Metadata value types by number: the scalars, and the two that are none.
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}
# fmt: on
_STRING, _ARRAY = 8, 9

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_INFO = 8 + 4 + 8 + 4 + 8


def read_gguf(path: Path) -> ModelFile:
    """Open the GGUF file at `path`; its tensors are views of the mapped file.

    Where the file is one of several that a model was split into, they are opened together.

    Raises `ModelFileError` for a file that is missing or damaged, and `UnsupportedError` for a
    sound one in a version, byte order or tensor format that hotloop does not read.
    """
    cursor, header = first = _open(path, map_file(path))
    metadata = header.metadata
    if split_count(metadata) > 1:
        paths = split_paths(path, split_count(metadata))
        opened = [_open(other, map_file(other)) for other in paths]
        parts = [(header.metadata, _tensors(cursor, header)) for cursor, header in opened]
        first, metadata, tensors = opened[0], parts[0][0], joined(paths, parts)
    else:
        tensors = _tensors(cursor, header)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise cursor.damaged("it does not name its architecture (general.architecture)")
    start = first[0]
    return ModelFile(
        path, architecture, metadata, tensors, texts=lambda: {"gguf": start.buffer[: start.at]}
    )


@dataclass(frozen=True)
class Entry:
    """A tensor as the header lists it, in a format that hotloop may not read.

    `shape` is NumPy's, rows first; `offset` counts from the start of the data.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the data of a GGUF file; the data is `data_bytes` long."""

    version: int
    metadata: Mapping[str, object]
    entries: tuple[Entry, ...]
    alignment: int
    data_bytes: int


def read_header(path: Path) -> Header:
    """The header of the GGUF file at `path`, whatever it holds.

    Raises `ModelFileError` and `UnsupportedError` as `read_gguf` does, but for what the tensors
    are, and where they lie.
    """
    return _open(path, map_file(path))[1]


def parse_header(path: Path, content: bytes) -> Header:
    """The header in `content`, which may end where the data would start."""
    return _open(path, content)[1]


def _open(path: Path, buffer: mmap.mmap | bytes) -> tuple["_Cursor", Header]:
    """The header, and the cursor behind it, where the data starts."""
    cursor = _Cursor(path, buffer)
    tensor_count, pair_count, version = _read_header(cursor)
    metadata = _read_metadata(cursor, pair_count)
    entries = tuple(_read_entry(cursor, index) for index in range(tensor_count))
    alignment = _alignment(cursor, metadata)
    cursor.at = (cursor.at + alignment - 1) // alignment * alignment
    data_bytes = max(0, len(cursor.buffer) - cursor.at)
    return cursor, Header(version, metadata, entries, alignment, data_bytes)


class _Cursor:
    """A place in the mapped file; every read checks that the file goes that far, and moves on."""

    def __init__(self, path: Path, buffer: mmap.mmap | bytes) -> None:
        self.path = path
        self.buffer = buffer
        self.at = 0
        self.reading = "the header"
        """What is being read, for the error message."""

    def damaged(self, found: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is damaged: {found}; download or convert it again.")

    def truncated(self) -> ModelFileError:
        size = len(self.buffer)
        return self.damaged(f"{self.reading} goes past the end of the file ({size} bytes)")

    def check_count(self, count: int, smallest: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold, before anything is allocated."""
        if count * smallest > len(self.buffer) - self.at:
            raise self.damaged(
                f"{self.reading} announces {count} {what}, and only "
                f"{len(self.buffer) - self.at} bytes follow"
            )

    def u32(self) -> int:
        return self._unpacked(_U32)

    def u64(self) -> int:
        return self._unpacked(_U64)

    def _unpacked(self, layout: struct.Struct) -> int:
        if self.at + layout.size > len(self.buffer):
            raise self.truncated()
        value: int = layout.unpack_from(self.buffer, self.at)[0]
        self.at += layout.size
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        self.check_count(count, _U64.size, "strings")
        buffer, at, end = self.buffer, self.at, len(self.buffer)
        length_at = _U64.unpack_from
        texts: list[str] = []
        append = texts.append
        try:
            for _ in range(count):  # The hot loop of opening a file: nothing here but the work.
                start = at + 8
                at = start + length_at(buffer, at)[0]
                if at > end:
                    raise self.truncated()
                append(buffer[start:at].decode())
        except struct.error:
            raise self.truncated() from None
        except UnicodeDecodeError:
            raise self.damaged(f"{self.reading} is not valid UTF-8 (byte {start})") from None
        self.at = at
        return texts

    def numbers(self, dtype: np.dtype[Any], count: int) -> list[object]:
        self.check_count(count, dtype.itemsize, "numbers")
        values: list[object] = np.frombuffer(self.buffer, dtype, count, self.at).tolist()
        self.at += count * dtype.itemsize
        return values

    def value(self, type_number: int) -> object:
        if type_number == _STRING:
            return self.string()
        if type_number in _SCALARS:
            return self.numbers(np.dtype(_SCALARS[type_number]), 1)[0]
        if type_number == _ARRAY:
            return self._array()
        raise self.damaged(f"{self.reading} has type number {type_number}, which GGUF lacks")

    def _array(self) -> list[str] | list[object]:
        type_number, count = self.u32(), self.u64()
        if type_number == _STRING:
            return self.strings(count)
        if type_number in _SCALARS:
            return self.numbers(np.dtype(_SCALARS[type_number]), count)
        raise self.damaged(f"{self.reading} is an array of type number {type_number}")


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    """Check magic and version; returns the numbers of tensors and metadata pairs, and version."""
    path = cursor.path
    magic = cursor.buffer[: len(MAGIC)]
    if magic != MAGIC:
        raise ModelFileError(
            f"{path} is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}; "
            "give the path of a .gguf file."
        )
    cursor.at = len(MAGIC)
    version = cursor.u32()
    if version not in VERSIONS:
        if version & 0xFFFF == 0:  # A small number, read in the wrong byte order.
            raise UnsupportedError(
                f"{path} is a big-endian GGUF file; hotloop reads little-endian ones: "
                "convert it on a little-endian machine."
            )
        raise UnsupportedError(
            f"{path} is GGUF version {version}; hotloop reads versions "
            f"{' and '.join(map(str, VERSIONS))}: convert it again."
        )
    tensor_count, pair_count = cursor.u64(), cursor.u64()
    cursor.check_count(tensor_count, _SMALLEST_INFO, "tensors")
    cursor.check_count(pair_count, _SMALLEST_PAIR, "metadata entries")
    return tensor_count, pair_count, version


def _read_metadata(cursor: _Cursor, count: int) -> Mapping[str, object]:
    metadata: dict[str, object] = {}
    for index in range(count):
        cursor.reading = f"metadata entry {index}"
        key = cursor.string()
        if key in metadata:
            raise cursor.damaged(f"it has two metadata entries {key!r:.80}")
        cursor.reading = f"metadata entry {key!r:.80}"
        metadata[key] = cursor.value(cursor.u32())
    return MappingProxyType(metadata)


def _alignment(cursor: _Cursor, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment is {alignment!r:.40}, not a power of two")
    return alignment


def _tensors(cursor: _Cursor, header: Header) -> Mapping[str, WeightData]:
    places: dict[str, tuple[TensorType, int]] = {}
    for entry in header.entries:
        if entry.name in places:
            raise cursor.damaged(f"it has two tensors {entry.name!r:.80}")
        places[entry.name] = _tensor_type(cursor, entry), entry.offset

    data = np.frombuffer(cursor.buffer, np.uint8)[cursor.at :]
    _check_places(cursor, places, header)
    return MappingProxyType(
        {
            name: _weight(name, type, data[offset : offset + type.nbytes])
            for name, (type, offset) in places.items()
        }
    )


def _weight(name: str, type: TensorType, data: NDArray[np.uint8]) -> WeightData:
    stored = WeightData(name, type, data)
    return unpacked(stored) if type.format in STORED.values() else stored


def _read_entry(cursor: _Cursor, index: int) -> Entry:
    cursor.reading = f"the entry of tensor {index}"
    name = cursor.string()
    cursor.reading = f"the entry of tensor {name!r:.80}"
    dims = cursor.u32()
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.damaged(f"tensor {name!r:.80} has {dims} dimensions, not 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64() for _ in range(dims))[::-1]
    number = cursor.u32()
    format = GGML_TYPES[number] if number < len(GGML_TYPES) else f"type number {number}"
    return Entry(name, format, shape, cursor.u64())


def _tensor_type(cursor: _Cursor, entry: Entry) -> TensorType:
    name, shape, type_name = entry.name, entry.shape, entry.format
    if type_name not in SUPPORTED:
        raise UnsupportedError(
            f"{cursor.path} stores tensor {name!r:.80} as {type_name}; hotloop reads "
            f"{', '.join(SUPPORTED)}: use a file in one of these."
        )
    type = TensorType(STORED.get(type_name) or FORMATS[type_name.lower()], shape)
    if 0 in shape:
        raise cursor.damaged(f"tensor {name!r:.80} has a dimension of 0")
    if shape[-1] % type.format.block:
        raise cursor.damaged(
            f"tensor {name!r:.80} has rows of {shape[-1]} elements, and {type_name} stores "
            f"blocks of {type.format.block}"
        )
    return type


def _check_places(
    cursor: _Cursor, places: Mapping[str, tuple[TensorType, int]], header: Header
) -> None:
    """Tensors are aligned, inside the data, and don't overlap."""
    alignment, size = header.alignment, header.data_bytes
    end, previous = 0, ""
    for name, (type, offset) in sorted(places.items(), key=lambda item: item[1][1]):
        if offset % alignment:
            raise cursor.damaged(
                f"tensor {name!r:.80} is at offset {offset}, not a multiple of {alignment}"
            )
        if offset + type.nbytes > size:
            raise cursor.damaged(
                f"tensor {name!r:.80} ends at byte {offset + type.nbytes} of {size} bytes of data"
            )
        if offset < end:
            raise cursor.damaged(f"tensors {previous!r:.80} and {name!r:.80} overlap")
        end, previous = offset + type.nbytes, name
