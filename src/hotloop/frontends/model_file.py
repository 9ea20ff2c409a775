"""What a model file holds, whichever format it came in: metadata and typed, unread weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.types import TensorType
from hotloop.util.errors import ModelFileError

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, eq=False)
class WeightData:
    """One stored tensor: `data` is a flat uint8 view of the mapped file, `type.nbytes` long.

    Nothing is read until somebody looks at the bytes. The shape is NumPy's, rows first.
    """

    name: str
    type: TensorType
    data: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A GGUF file or a Hugging Face folder, opened.

    `metadata` has the names of its source: `llama.block_count` from GGUF, `num_hidden_layers` from
    a `config.json`. Its values are str, int, float, bool, sequences of those, and (config.json
    only) None and dicts.
    """

    path: Path
    architecture: str
    metadata: Mapping[str, object]
    tensors: Mapping[str, WeightData]

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


def _shortened(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 60 else text[:57] + "..."
