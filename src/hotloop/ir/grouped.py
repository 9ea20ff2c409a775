"""Formats of our own for what pre-quantised safetensors files hold: groups with a float32 scale.

AWQ, GPTQ and compressed-tensors store integer codes with a scale and a zero point for each group
of columns, FP8 files 8-bit floats with a scale; here the numbers of a group stand together, with a
float32 scale, which is exact for each of theirs:

    u4_n   scale · (code - zero), n columns; nibbles for 32 columns in 16 bytes: byte j has column j
           in its low and j + 16 in its high nibble
    u8_n   the same with bytes
    f8_n   scale · code, with e4m3 codes (OCP FP8, "E4M3FN": sign, four bits of exponent with bias
           7, three of fraction; no infinity, and NaN where all other bits are set)
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.types import GROUPS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_SCALED = [("scale", "<f4"), ("zero", "<i2")]

#: The blocks as `hotloop.frontends` makes them.
FILE = {
    **{f"u4_{n}": np.dtype([*_SCALED, ("codes", "u1", (n // 2,))]) for n in GROUPS},
    **{f"u8_{n}": np.dtype([*_SCALED, ("codes", "u1", (n,))]) for n in GROUPS},
    **{f"f8_{n}": np.dtype([("scale", "<f4"), ("codes", "u1", (n,))]) for n in GROUPS},
}


def e4m3(codes: Bytes) -> Floats:
    """The float32 of e4m3 codes."""
    numbers: Floats = _E4M3[codes]
    return numbers


def _e4m3_table() -> Floats:
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    magnitude = np.where(exponent > 0, normal, np.ldexp(fraction / 8, -6))
    magnitude[(code & 127) == 127] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


_E4M3 = _e4m3_table()


def pack_nibbles(codes: Bytes) -> Bytes:
    """Codes [..., n] of 4 bits as the bytes [..., n / 2] of a u4 block."""
    halves = codes.reshape(*codes.shape[:-1], -1, 2, 16)
    packed: Bytes = halves[..., 0, :] | (halves[..., 1, :] << np.uint8(4))
    return packed.reshape(*codes.shape[:-1], -1)


def _u4(name: str) -> Callable[[Bytes], Floats]:
    def dequantise(data: Bytes) -> Floats:
        blocks = data.view(FILE[name])[:, 0]
        halves = blocks["codes"].reshape(len(blocks), -1, 16)
        codes = np.concatenate([halves & 15, halves >> 4], axis=-1).reshape(len(blocks), -1)
        return _scaled(blocks, codes)

    return dequantise


def _u8(name: str) -> Callable[[Bytes], Floats]:
    def dequantise(data: Bytes) -> Floats:
        blocks = data.view(FILE[name])[:, 0]
        return _scaled(blocks, blocks["codes"])

    return dequantise


def _f8(name: str) -> Callable[[Bytes], Floats]:
    def dequantise(data: Bytes) -> Floats:
        blocks = data.view(FILE[name])[:, 0]
        values: Floats = blocks["scale"][:, None] * e4m3(blocks["codes"])
        return values

    return dequantise


def _scaled(blocks: NDArray[np.void], codes: Bytes) -> Floats:
    integers = codes.astype(np.int32) - blocks["zero"][:, None]
    values: Floats = blocks["scale"][:, None] * integers.astype(np.float32)
    return values


DEQUANTISE: dict[str, Callable[[Bytes], Floats]] = {
    **{f"u4_{n}": _u4(f"u4_{n}") for n in GROUPS},
    **{f"u8_{n}": _u8(f"u8_{n}") for n in GROUPS},
    **{f"f8_{n}": _f8(f"f8_{n}") for n in GROUPS},
}
