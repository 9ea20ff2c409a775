"""GPTQ and AWQ layouts: a linear layer as `qweight`, `qzeros` and `scales`, transposed.

With w[n, k] = scale · (code - zero), `scales` is float16 [K / group, N], and codes and zeros are
packed in int32, 32 / bits to a word from its lowest bits on:

    gptq   qweight [K · bits / 32, N]: neighbours k in a word; qzeros [K / group, N · bits / 32]:
           neighbours n, less one unless `checkpoint_format` is "gptq_v2"; g_idx [K]: the group of
           each column (AutoGPTQ and GPTQModel, `QuantLinear`)
    awq    qweight [K, N · bits / 32] and qzeros as above, neighbours n in the order 0, 2, 4, 6, 1,
           3, 5, 7 (AutoAWQ, `WQLinear_GEMM`), in 8 bit 0, 2, 1, 3 (vLLM, `awq_marlin`)
"""

from collections.abc import Mapping
from reprlib import repr as brief  # what a file says may be long
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.column_order import column_order
from hotloop.frontends.grouped import grouped, unpacked
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.stored import Stored
from hotloop.util.errors import ModelFileError, UnsupportedError

PARTS = ("qweight", "qzeros", "scales", "g_idx")

#: Where in a word AWQ keeps its neighbours, by their bits.
_AWQ_PLACES = {4: (0, 4, 1, 5, 2, 6, 3, 7), 8: (0, 2, 1, 3)}


def gptq_weights(
    module: str, parts: Mapping[str, Stored], config: Mapping[str, Any]
) -> list[WeightData]:
    """`module`.weight of its `parts`, and its order, by a GPTQ or AWQ `quantization_config`."""
    awq = config["quant_method"] == "awq"
    bits: int = config.get("bits", 0)
    if bits not in (4, 8):
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
    for stored in (words, scales):
        if len(stored.shape) != 2:
            raise ModelFileError(f"{stored} is no matrix; download the model again.")
    per_word = 32 // bits
    rows = scales.shape[-1]
    columns = words.shape[0] * (1 if awq else per_word)
    group = config.get("group_size", -1)
    if isinstance(group, int) and (group == -1 or group > columns):
        group = columns
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
    order = None if awq else column_order(parts.get("g_idx"), columns, group)
    places = _AWQ_PLACES[bits] if awq else None
    stored_less_one = not awq and config.get("checkpoint_format", "gptq") != "gptq_v2"

    def codes() -> NDArray[np.uint8]:
        return np.ascontiguousarray(unpacked(words.array(), bits, int(awq), places).T)

    def zeros() -> NDArray[np.int16]:
        return unpacked(zero_words.array(), bits, 1, places).T.astype(np.int16) + stored_less_one

    return grouped(
        module,
        f"u{bits}",
        (rows, columns),
        group,
        (words, zero_words, scales),
        codes,
        lambda: scales.floats().T,
        zeros,
        order,
    )
