"""GPTQ and AWQ layouts: a linear layer as `qweight`, `qzeros` and `scales`, transposed.

With w[n, k] = scale · (code - zero), `scales` is float16 [K / group, N], and codes and zeros are
packed in int32, 32 / bits to a word from its lowest bits on:

    gptq   qweight [K · bits / 32, N]: neighbours k in a word; qzeros [K / group, N · bits / 32]:
           neighbours n, less one unless `checkpoint_format` is "gptq_v2"; g_idx [K]: the group of
           each column (AutoGPTQ and GPTQModel, `QuantLinear`)
    awq    qweight [K, N · bits / 32] and qzeros as above, neighbours n in the order 0, 2, 4, 6, 1,
           3, 5, 7 (AutoAWQ, `WQLinear_GEMM`)
"""

from collections.abc import Mapping
from reprlib import repr as brief  # what a file says may be long
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.grouped import grouped, unpacked
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.stored import Stored
from hotloop.util.errors import ModelFileError, UnsupportedError

PARTS = ("qweight", "qzeros", "scales", "g_idx")

#: Where in a word AWQ keeps its neighbours.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def gptq_weight(module: str, parts: Mapping[str, Stored], config: Mapping[str, Any]) -> WeightData:
    """`module`.weight of its `parts`, by a GPTQ or AWQ `quantization_config`."""
    awq = config["quant_method"] == "awq"
    bits: int = config.get("bits", 0)
    if bits not in ((4,) if awq else (4, 8)):
        raise UnsupportedError(
            f"{module} is quantised to {brief(bits)} bits; hotloop reads 4 and 8."
        )
    version = str(config.get("version", "gemm")).lower()
    if awq and version != "gemm":
        raise UnsupportedError(f"{module} is in AWQ's layout {version!r:.40}; hotloop reads gemm.")
    missing = [part for part in PARTS[:3] if part not in parts]
    if missing:
        raise ModelFileError(f"{module} has no {missing[0]}; download the model again.")
    words, zero_words, scales = (parts[part] for part in PARTS[:3])
    per_word = 32 // bits
    rows = scales.shape[-1]
    columns = words.shape[0] * (1 if awq else per_word)
    group = config.get("group_size", -1)
    group = columns if group == -1 else group
    groups = -(-columns // group) if isinstance(group, int) and group > 0 else 0
    expected = {
        "qweight": (columns, rows // per_word) if awq else (columns // per_word, rows),
        "qzeros": (groups, rows // per_word),
        "scales": (groups, rows),
    }
    for part, shape in expected.items():
        if parts[part].shape != shape:
            raise ModelFileError(
                f"{parts[part]} should be [{','.join(map(str, shape))}] for {bits} bits in groups "
                f"of {group}; check the quantization_config."
            )
    _check_order(module, parts.get("g_idx"), group)
    order = _AWQ_ORDER if awq else None
    stored_less_one = not awq and config.get("checkpoint_format", "gptq") != "gptq_v2"

    def codes() -> NDArray[np.uint8]:
        return np.ascontiguousarray(unpacked(words.array(), bits, int(awq), order).T)

    def zeros() -> NDArray[np.int16]:
        return unpacked(zero_words.array(), bits, 1, order).T.astype(np.int16) + stored_less_one

    return grouped(
        f"{module}.weight",
        f"u{bits}",
        (rows, columns),
        group,
        (words, zero_words, scales),
        codes,
        lambda: scales.floats().T,
        zeros,
    )


def _check_order(module: str, groups: Stored | None, group: int) -> None:
    """Raise `UnsupportedError` where columns are in groups that are not their neighbours."""
    if groups is not None:
        numbers = groups.array()
        if not np.array_equal(numbers, np.arange(numbers.size) // group):
            raise UnsupportedError(
                f"{module} is quantised in the order of activations (desc_act), which scatters "
                "the columns of a group; use a file made with desc_act false, or a GGUF file."
            )
