"""What a model file holds, whichever format it came in: metadata and typed, unread weights."""

import mmap
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.packed import Packed
from hotloop.ir.types import TensorType
from hotloop.util.errors import ModelFileError

T = TypeVar("T")
D = TypeVar("D")

Stored = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True, eq=False)
class WeightData:
    """One tensor, as the file stores it or made of what it stores.

    `stored` is a flat uint8 view of the mapped file, `type.nbytes` long, or makes such bytes, of
    `made_of`. Nothing is read until somebody looks at `data`. The shape is NumPy's, rows first.
    """

    name: str
    type: TensorType
    stored: Stored
    made_of: tuple["WeightData", ...] = ()

    @property
    def data(self) -> NDArray[np.uint8]:
        return self.stored() if callable(self.stored) else self.stored

    def release(self) -> None:
        """Give the pages of the mapped file back to the system; who looks again reads them anew.

        A model whose weights were copied elsewhere would otherwise count twice. Data that is not a
        view of a map stays.
        """
        for source in self.made_of:
            source.release()
        owner: object = None if callable(self.stored) else self.stored
        while isinstance(owner, np.ndarray):
            owner = owner.base
        owner = owner.obj if isinstance(owner, memoryview) else owner
        if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        data = self.data
        offset = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages of this tensor only
        last = (offset + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            owner.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A GGUF file or a Hugging Face folder, opened.

    `metadata` has the names of its source: `llama.block_count` from GGUF, `num_hidden_layers` from
    a `config.json`. Its values are str, int, float, bool, sequences of those, and (config.json
    only) None and dicts. `texts` gives the small files that belong to the weights by name: those of
    a folder, or the header of a GGUF file. `packed` is where a packed file has the weights of the
    graph, whose `data` then is not there; `quantised` is the format to which its matrices were
    rounded before they were packed.
    """

    path: Path
    architecture: str
    metadata: Mapping[str, object]
    tensors: Mapping[str, WeightData]
    texts: Callable[[], Mapping[str, bytes]] = dict
    packed: Mapping[str, Packed] = field(default_factory=dict)
    quantised: str | None = None

    def require(self, key: str, kind: type[T]) -> T:
        """`metadata[key]`, an instance of `kind`; an int will do where a float is asked for.

        Raises `ModelFileError` where the key is missing, null or of another kind.
        """
        if self.metadata.get(key) is None:
            raise ModelFileError(
                f"{self.path} does not say {key}, which a {self.architecture} model needs; "
                "convert the model again with a current converter."
            )
        return self._checked(key, kind)

    def optional(self, key: str, kind: type[T], default: D) -> T | D:
        """Like `require`, but `default` where the key is missing or null."""
        return default if self.metadata.get(key) is None else self._checked(key, kind)

    def _checked(self, key: str, kind: type[T]) -> T:
        value = self.metadata[key]
        if kind is float and type(value) is int and abs(value) < 2**63:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelFileError(
                f"{self.path} gives {key} as {_shortened(value)}, where {kind.__name__} is "
                "expected; convert the model again with a current converter."
            )
        return value


def map_file(path: Path) -> mmap.mmap:
    """Map the regular file at `path` for reading.

    The map outlives the file's name, but not its bytes: who truncates a mapped file kills its
    readers (SIGBUS), so files are replaced by renaming, never rewritten in place.
    Raises `ModelFileError` where there is no such file, or it is empty or cannot be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelFileError(f"{path} is {kind}; give the path of a model file.")
        if status.st_size == 0:
            raise ModelFileError(f"{path} is empty; download it again.")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist; check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path.
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{path} cannot be read ({reason}); check the path.") from None


def _shortened(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 60 else text[:57] + "..."
