"""Formats whose 4-bit codes are places in a table of 16 numbers: iq4_nl, iq4_xs and mxfp4.

Layouts are GGUF's (ggml's `ggml-common.h`): nibbles as in q4_0, before them

    iq4_nl   a float16 scale; element = scale · BOOK[code]
    iq4_xs   256 elements: a float16 d, uint16 and 4 bytes of scales; d · (scale - 32) · BOOK[code],
             where scale, of 32 elements, has its lower four bits in a nibble, its upper two in the
             uint16
    mxfp4    an exponent byte e; 2^(e - 128) · TWICE_E2M1[code] (OCP Microscaling Formats 1.0; its
             table is twice the standard's numbers, hence 128 where the standard has 127)
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

#: ggml's `kvalues_iq4nl`: steps that are finer near zero, where weights are dense.
BOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

#: The blocks as they lie in a file.
FILE = {
    "iq4_nl": np.dtype([("d", "<f2"), ("fours", "u1", (16,))]),
    "iq4_xs": np.dtype(
        [("d", "<f2"), ("scales_high", "<u2"), ("scales_low", "u1", (4,)), ("fours", "u1", (128,))]
    ),
    "mxfp4": np.dtype([("exponent", "u1"), ("fours", "u1", (16,))]),
}


def signed_scales(low: Bytes, high: NDArray[np.uint16]) -> NDArray[np.int8]:
    """The scales [..., 8] of iq4_xs, less 32, of its fields [..., 4] and [...]."""
    nibbles = np.stack([low & 15, low >> 4], axis=-1).reshape(*low.shape[:-1], 8)
    twos = (high[..., None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    together = (nibbles | (twos << 4).astype(np.uint8)).astype(np.int8)
    return (together - np.int8(32)).astype(np.int8, copy=False)


def power(exponents: Bytes) -> Floats:
    """2^(e - 128); its smallest two are subnormal."""
    wide = exponents.astype(np.uint32)
    bits = np.where(wide < 2, np.uint32(0x00200000) << (wide & 1), (wide - 1) << 23)
    powers: Floats = bits.view(np.float32)
    return powers


def _looked_up(fours: Bytes, book: tuple[int, ...]) -> Floats:
    """The numbers [n, blocks, 32] of nibbles [n, 16 · blocks]."""
    halves = fours.reshape(len(fours), -1, 16)
    codes = np.concatenate([halves & 15, halves >> 4], axis=-1)
    numbers: Floats = np.array(book, np.float32)[codes]
    return numbers


def _iq4_nl(data: Bytes) -> Floats:
    blocks = data.view(FILE["iq4_nl"])[:, 0]
    return blocks["d"].astype(np.float32)[:, None, None] * _looked_up(blocks["fours"], BOOK)


def _iq4_xs(data: Bytes) -> Floats:
    blocks = data.view(FILE["iq4_xs"])[:, 0]
    scales = signed_scales(blocks["scales_low"], blocks["scales_high"]).astype(np.float32)
    factors = blocks["d"].astype(np.float32)[:, None] * scales
    return factors[..., None] * _looked_up(blocks["fours"], BOOK)


def _mxfp4(data: Bytes) -> Floats:
    blocks = data.view(FILE["mxfp4"])[:, 0]
    return power(blocks["exponent"])[:, None, None] * _looked_up(blocks["fours"], TWICE_E2M1)


DEQUANTISE = {"iq4_nl": _iq4_nl, "iq4_xs": _iq4_xs, "mxfp4": _mxfp4}
