"""gpt-oss' safetensors: experts in MXFP4, as a tensor of blocks and one of scales.

    NAME_blocks   uint8 [E, N, K / 32, 16]: byte j has column 2j in its low nibble, 2j + 1 in its
                  high one
    NAME_scales   uint8 [E, N, K / 32]: exponents, 2^(e - 127)

ggml's mxfp4 has the same numbers, with column j + 16 in the high nibble: codes move, nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.model_file import WeightData
from hotloop.frontends.stored import Stored
from hotloop.ir.code_books import FILE
from hotloop.ir.grouped import pack_nibbles
from hotloop.ir.types import tensor
from hotloop.util.errors import ModelFileError

BLOCKS, SCALES = "_blocks", "_scales"


def mxfp4_weight(name: str, blocks: Stored | None, scales: Stored | None) -> WeightData:
    """The weight `name` [E, N, K] of its two tensors."""
    if blocks is None or scales is None:
        missing = BLOCKS if blocks is None else SCALES
        raise ModelFileError(f"{name} has no {name}{missing}; download the model again.")
    if len(blocks.shape) != 4 or blocks.shape[3] != 16 or blocks.shape[:3] != scales.shape:
        raise ModelFileError(
            f"{blocks} and {scales} are no blocks of 16 bytes with a scale each; download the "
            "model again."
        )
    experts, rows, count, _ = blocks.shape

    def make() -> NDArray[np.uint8]:
        bytes_ = blocks.data.reshape(-1, 16)
        codes = np.stack((bytes_ & 15, bytes_ >> 4), axis=-1).reshape(-1, 32)
        whole = np.empty(len(codes), FILE["mxfp4"])
        whole["exponent"], whole["fours"] = scales.data, pack_nibbles(codes)
        return whole.view(np.uint8)

    type = tensor("mxfp4", experts, rows, 32 * count)
    return WeightData(name, type, make, (blocks.bytes(), scales.bytes()))
