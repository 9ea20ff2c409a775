"""K-quants: blocks of 256 elements with a small integer scale for each 16 or 32 of them.

Layouts are GGUF's (ggml's `ggml-common.h`, `block_q2_K` … `block_q6_K`). An element is

    d · scale · (code - offset)  -  dmin · minimum

with float16 d and dmin for the block, and scale and minimum for the sub-block:

            code    offset   scale             minimum    elements to a scale
    q2_k    2 bit   0        4 bit             4 bit      16
    q3_k    3 bit   4        6 bit, less 32    -          16
    q4_k    4 bit   0        6 bit             6 bit      32
    q5_k    5 bit   0        6 bit             6 bit      32
    q6_k    6 bit   32       int8              -          16

Codes lie in planes: two bits of 128 elements in 32 bytes (byte l has elements l, l + 32, l + 64
and l + 96 of them), four bits of 64 elements in 32 bytes (l and l + 32; in q6_k 128 elements in
64 bytes: l and l + 64), one bit of 256 elements in 32 bytes.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

#: The blocks as they lie in a file.
FILE = {
    "q2_k": np.dtype(
        [("scales", "u1", (16,)), ("twos", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")]
    ),
    "q3_k": np.dtype(
        [("ones", "u1", (32,)), ("twos", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")]
    ),
    "q4_k": np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("fours", "u1", (128,))]
    ),
    "q5_k": np.dtype(
        [
            ("d", "<f2"),
            ("dmin", "<f2"),
            ("scales", "u1", (12,)),
            ("ones", "u1", (32,)),
            ("fours", "u1", (128,)),
        ]
    ),
    "q6_k": np.dtype(
        [("fours", "u1", (128,)), ("twos", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")]
    ),
}


def scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 6-bit scales and minima [..., 8] in the 12 bytes [..., 12] of q4_k and q5_k.

    Bytes 0 to 3 have the first four scales in their lower six bits and the upper two bits of the
    last four scales above; bytes 4 to 7 the same of the minima; bytes 8 to 11 the lower four bits
    of the last four scales, and of the last four minima above.
    """
    first, second, low = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (low & 15) | ((first >> 6) << 4)], axis=-1)
    minima = np.concatenate([second & 63, (low >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales, minima


def signed_scales(packed: Bytes) -> NDArray[np.int8]:
    """The scales [..., 16] of q3_k, less 32, in its 12 bytes [..., 12].

    The low nibbles of the first eight bytes are the lower four bits of scales 0 to 7, the high
    nibbles those of 8 to 15; the last four bytes hold the upper two bits of scales l, l + 4, l + 8
    and l + 12.
    """
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    high = np.concatenate([(packed[..., 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    scales: NDArray[np.int8] = (low | (high << 4)).astype(np.int8) - np.int8(32)
    return scales


def _planes(packed: Bytes, bits: int, span: int) -> Bytes:
    """Codes [n, elements]: byte l of each `span` bytes has elements l, l + span, l + 2·span, …."""
    spans = packed.reshape(len(packed), -1, 1, span)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    codes = (spans >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1).astype(np.uint8, copy=False)


def _scaled(
    d: NDArray[np.float16], scales: NDArray[np.integer], codes: NDArray[np.integer]
) -> Floats:
    """d · scale · code, as [n, sub-blocks, elements]."""
    factors = d.astype(np.float32)[:, None] * scales.astype(np.float32)
    values = factors[..., None] * codes.reshape(*scales.shape, -1).astype(np.float32)
    return values.astype(np.float32, copy=False)


def _shift(dmin: NDArray[np.float16], minima: NDArray[np.integer]) -> Floats:
    factors = dmin.astype(np.float32)[:, None] * minima.astype(np.float32)
    return factors[..., None].astype(np.float32, copy=False)


def _q2_k(data: Bytes) -> Floats:
    blocks = data.view(FILE["q2_k"])[:, 0]
    scales, codes = blocks["scales"], _planes(blocks["twos"], 2, 32)
    return _scaled(blocks["d"], scales & 15, codes) - _shift(blocks["dmin"], scales >> 4)


def _q3_k(data: Bytes) -> Floats:
    blocks = data.view(FILE["q3_k"])[:, 0]
    codes = _planes(blocks["twos"], 2, 32) | _planes(blocks["ones"], 1, 32) << 2
    return _scaled(blocks["d"], signed_scales(blocks["scales"]), codes.astype(np.int8) - 4)


def _q4_k(data: Bytes) -> Floats:
    blocks = data.view(FILE["q4_k"])[:, 0]
    scales, minima = scales_and_minima(blocks["scales"])
    codes = _planes(blocks["fours"], 4, 32)
    return _scaled(blocks["d"], scales, codes) - _shift(blocks["dmin"], minima)


def _q5_k(data: Bytes) -> Floats:
    blocks = data.view(FILE["q5_k"])[:, 0]
    scales, minima = scales_and_minima(blocks["scales"])
    codes = _planes(blocks["fours"], 4, 32) | _planes(blocks["ones"], 1, 32) << 4
    return _scaled(blocks["d"], scales, codes) - _shift(blocks["dmin"], minima)


def _q6_k(data: Bytes) -> Floats:
    blocks = data.view(FILE["q6_k"])[:, 0]
    codes = _planes(blocks["fours"], 4, 64) | _planes(blocks["twos"], 2, 32) << 4
    return _scaled(blocks["d"], blocks["scales"], codes.astype(np.int8) - 32)


DEQUANTISE = {"q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k}
