"""compressed-tensors and FP8 layouts: a linear layer as codes and `weight_scale`.

By what a module holds (github.com/vllm-project/compressed-tensors, `compressors/`; rows N first):

    pack-quantized    weight_packed int32 [N, K · bits / 32], neighbours k from the lowest bits on,
                      each with half its range added; weight_shape [2]; weight_zero_point packed
                      along N the same way, or int8 [N, groups]; weight_g_idx [K]: the group of
                      each column
    int-quantized     weight int8 [N, K]; weight_zero_point int8
    float-quantized   weight e4m3 [N, K]
    fp8               the same, its scales called weight_scale_inv (DeepSeek-V3, `fp8` in
                      transformers); they multiply, too

Scales are one for all, one for a row, [N, K / group], or one for blocks of rows and columns.
"""

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.column_order import column_order
from hotloop.frontends.grouped import grouped, unpacked
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.stored import Stored
from hotloop.util.errors import ModelFileError, UnsupportedError

CODES = ("weight_packed", "weight")
PARTS = (
    *CODES,
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
)
#: Scales of activations, which hotloop rounds by itself.
IGNORED = ("input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale")


def compressed_weights(module: str, parts: Mapping[str, Stored]) -> list[WeightData]:
    """`module`.weight of its `parts`, and its order."""
    scale = parts.get("weight_scale") or parts.get("weight_scale_inv")
    if scale is None:
        raise ModelFileError(f"{module} has no weight_scale; download the model again.")
    if "weight_packed" in parts:
        return _packed(module, parts, scale)
    weight = parts.get("weight")
    if weight is None:
        raise ModelFileError(f"{module} has no weight; download the model again.")
    rows, columns = _matrix(weight)
    group = _group(scale, rows, columns)
    sources = (weight, scale)
    if weight.dtype == "F8_E4M3":

        def floats() -> NDArray[np.uint8]:
            codes = weight.array().astype(np.uint8, copy=False)
            if ((codes & 127) == 127).any():
                raise ModelFileError(f"{weight} holds numbers that are none; download it again.")
            return codes

        return grouped(
            module, "f8", (rows, columns), group, sources, floats, lambda: _spread(scale, rows)
        )
    zero = parts.get("weight_zero_point")

    def codes() -> NDArray[np.uint8]:
        return weight.array().view(np.uint8) ^ np.uint8(128)

    return grouped(
        module,
        "u8",
        (rows, columns),
        group,
        sources,
        codes,
        lambda: _spread(scale, rows),
        lambda: _zeros(zero, 8, rows),
    )


def _packed(module: str, parts: Mapping[str, Stored], scale: Stored) -> list[WeightData]:
    words, shape = parts["weight_packed"], parts.get("weight_shape")
    if shape is None or shape.shape != (2,):
        raise ModelFileError(f"{module} has no weight_shape of two numbers; download it again.")
    rows, columns = (int(n) for n in shape.array())
    held, width = _matrix(words)
    bits = 32 * width // max(columns, 1)
    if held != rows or bits * columns != 32 * width:
        raise ModelFileError(f"{words} does not hold [{rows},{columns}] codes; download it again.")
    if bits not in (4, 8):
        raise UnsupportedError(f"{module} is quantised to {bits} bits; hotloop reads 4 and 8.")
    group = _group(scale, rows, columns)
    groups = parts.get("weight_g_idx")
    if groups is not None and (groups.array() == -1).all():
        groups = None  # what the compressor writes for columns that lie in order
    return grouped(
        module,
        f"u{bits}",
        (rows, columns),
        group,
        (words, scale),
        lambda: unpacked(words.array(), bits, 1),
        lambda: _spread(scale, rows),
        lambda: _zeros(parts.get("weight_zero_point"), bits, rows),
        column_order(groups, columns, group),
    )


def _matrix(stored: Stored) -> tuple[int, int]:
    if len(stored.shape) != 2:
        raise UnsupportedError(f"{stored} is no matrix; hotloop reads quantised matrices only.")
    return stored.shape[0], stored.shape[1]


def _group(scale: Stored, rows: int, columns: int) -> int:
    """Columns that share a scale."""
    if prod(scale.shape) == 1:
        return columns
    counts = (scale.shape[0], scale.shape[1] if len(scale.shape) > 1 else 1)
    if len(scale.shape) > 2 or not 1 <= counts[0] <= rows or not 1 <= counts[1] <= columns:
        raise ModelFileError(f"{scale} does not fit a weight of [{rows},{columns}].")
    # Blocks are whole but for the last; their sizes are powers of two.
    group = -(-columns // counts[1])
    return columns if counts[1] == 1 else 1 << (group - 1).bit_length()


def _spread(scale: Stored, rows: int) -> NDArray[np.float32]:
    """Scales [N or 1, groups]."""
    values = scale.floats().reshape(scale.shape[0] if scale.shape else 1, -1)
    if len(values) in (1, rows):
        return values
    block = 1 << (-(-rows // len(values)) - 1).bit_length()
    return values[np.arange(rows) // block]


def _zeros(zero: Stored | None, bits: int, rows: int) -> NDArray[np.int16]:
    """Zero points [N or 1, groups] of codes that have half their range added."""
    half = 1 << (bits - 1)
    if zero is None:
        return np.full((1, 1), half, np.int16)
    if zero.dtype == "I32":
        return unpacked(zero.array(), bits, 0)[:rows].astype(np.int16)
    values = zero.array().astype(np.int16)
    return values.reshape(zero.shape[0] if zero.shape else 1, -1) + np.int16(half)
