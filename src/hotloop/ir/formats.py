"""The meaning of the stored formats, in NumPy: bytes to float32.

Layouts are GGUF's (ggml's `ggml-common.h`). Here the plain formats and those that keep one scale
for 32 elements; `k_quants`, `code_books`, `grouped` and
`unpacked` have the others. q8_0 is a float16 scale and 32 int8;
q4_0 a float16 scale and 16 bytes of nibbles, q4_1 the same with a float16 minimum after the scale:
in byte j the low nibble is element j and the high nibble element j + 16. q5_0 and q5_1 have a
uint32 before the nibbles, whose bit j is the fifth bit of element j.
"""

import numpy as np
from numpy.typing import NDArray

from hotloop.ir import code_books, grouped, k_quants, unpacked
from hotloop.ir.types import TensorType

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def dequantise(data: Bytes, type: TensorType) -> Floats:
    """The float32 values of `data`, the file's bytes of a tensor of `type` (1-D uint8)."""
    name = type.format.name
    if name == "bf16":
        flat = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    elif type.format.numpy is not None:
        flat = data.view(type.format.numpy).astype(np.float32)
    else:
        flat = _BLOCKS[name](data.reshape(-1, type.format.block_bytes)).reshape(-1)
    return flat.reshape(type.shape)


def _scale(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(blocks: Bytes, at: int) -> Floats:
    packed = blocks[:, at : at + 16]
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * (_nibbles(blocks, 2) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * _nibbles(blocks, 4) + _scale(blocks, 2)


def _fives(blocks: Bytes, at: int) -> Floats:
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return _nibbles(blocks, at + 4) + 16 * bits.astype(np.float32)


def _q5_0(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * (_fives(blocks, 2) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * _fives(blocks, 4) + _scale(blocks, 2)


_BLOCKS = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    **k_quants.DEQUANTISE,
    **code_books.DEQUANTISE,
    **grouped.DEQUANTISE,
    **unpacked.DEQUANTISE,
}
