"""RoPE scaling: the divisors of the frequencies that stretch a model's context.

Each function gives one divisor for each pair of a head. The llama3 rule is that of Llama 3.1's
reference code: long waves are divided by `factor`, short ones stay, those between are blended.
"""

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np

from hotloop.frontends.model_file import ModelFile
from hotloop.util.errors import ModelFileError, UnsupportedError

SUPPORTED = ("default", "linear", "llama3")


def scales(file: ModelFile, rope: Mapping[str, Any], head_dim: int, theta: float) -> Any:
    """Divisors for a Hugging Face rope section (either of its layouts); None for no scaling."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return (_number(file, rope, "factor"),) * (head_dim // 2)
    if kind == "llama3":
        return llama3(
            theta,
            head_dim,
            factor=_number(file, rope, "factor"),
            low=_number(file, rope, "low_freq_factor"),
            high=_number(file, rope, "high_freq_factor"),
            original=_number(file, rope, "original_max_position_embeddings"),
        )
    raise UnsupportedError(
        f"{file.path} scales RoPE by {kind!r}; hotloop knows {', '.join(SUPPORTED)}."
    )


def llama3(
    theta: float, head_dim: int, *, factor: float, low: float, high: float, original: float
) -> tuple[float, ...]:
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = original * frequencies / (2 * pi)  # rotations within the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / (blend + (1 - blend) / factor)).tolist())


def _number(file: ModelFile, rope: Mapping[str, Any], key: str) -> float:
    value = rope.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ModelFileError(
            f"{file.path}: RoPE scaling needs a positive {key}, found {value!r}; "
            "check the model's config.json."
        )
    return float(value)
