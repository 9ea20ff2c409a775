"""Formats of our own for what GGUF's smallest formats unpack to: places in a table of 16 numbers.

The formats iq1_s to iq3_s look up 4 or 8 elements at once in tables of hundreds of rows, which no
instruction does; tq1_0 keeps five elements in a byte. Yet their elements have few values, so
four bits for each, the scales and d hold the same numbers without loss:

    d · scale · BOOK[code] · FACTOR

with a float16 d for 256 elements and an int8 scale for each 16 of them; nibbles for 32 elements in
16 bytes: byte j has element j in its low and j + 16 in its high nibble. Values and factors are
those of ggml's `dequantize_row_iq1_s` and the like.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def _mirrored(*numbers: int) -> tuple[int, ...]:
    return (*(-number for number in reversed(numbers)), *numbers)


#: The numbers that codes stand for; the rest of the 16 places is never used.
BOOKS = {
    "tq_u": (-1, 0, 1, 2),
    "iq1_u": _mirrored(1, 7, 9),
    "iq2_u": _mirrored(8, 25, 43),
    "iq3_xxs_u": _mirrored(4, 12, 20, 28, 36, 44, 52, 62),
    "iq3_s_u": _mirrored(1, 3, 5, 7, 9, 11, 13, 15),
}
#: Powers of two, so that products with them are exact.
FACTORS = {"tq_u": 1.0, "iq1_u": 0.125, "iq2_u": 0.125, "iq3_xxs_u": 0.25, "iq3_s_u": 1.0}

BLOCK = np.dtype([("d", "<f2"), ("scales", "i1", (16,)), ("fours", "u1", (128,))])


def _dequantise(name: str) -> Callable[[Bytes], Floats]:
    book = np.array(BOOKS[name] + (0,) * (16 - len(BOOKS[name])), np.float32)

    def dequantise(data: Bytes) -> Floats:
        blocks = data.view(BLOCK)[:, 0]
        halves = blocks["fours"].reshape(len(blocks), -1, 16)
        codes = np.stack([halves & 15, halves >> 4], axis=2).reshape(len(blocks), 16, 16)
        scales = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
        values: Floats = (scales * np.float32(FACTORS[name]))[..., None] * book[codes]
        return values

    return dequantise


DEQUANTISE = {name: _dequantise(name) for name in BOOKS}
