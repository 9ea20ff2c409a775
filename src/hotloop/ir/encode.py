"""Float32 to q8_0, q4_0 and q4_1: the roundings of ggml's reference quantisers.

Scales are computed in float32 and stored as float16; codes are divided by the float32 ones.
    q8_0   scale = max|x| / 127; code = x / scale to the nearest, halves away from zero
    q4_0   scale = (the x farthest from 0) / -8; code = x / scale + 8, to the nearest, at most 15
    q4_1   scale = (max - min) / 15; code = (x - min) / scale to the nearest
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BLOCK = 32
#: Elements at a time: the intermediate arrays stay in a core's cache.
_CHUNK = 1 << 15


def encode(values: Floats, name: str) -> Bytes:
    """The bytes of `values`, flat and in whole blocks, in format `name`."""
    blocks = values.reshape(-1, BLOCK)
    step = _CHUNK // BLOCK
    chunks = [_ENCODE[name](blocks[i : i + step]) for i in range(0, len(blocks), step)]
    return np.concatenate(chunks).reshape(-1)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, or 0 where that is infinite: such a scale is 0 as a float16."""
    invertible = np.abs(scale) >= np.float32(2.0**-126)
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=invertible)


def _half(numbers: Floats) -> Bytes:
    with np.errstate(over="ignore"):  # A float16 is infinite where a float32 is beyond its range.
        return numbers.astype("<f2").view(np.uint8)


def _nibbles(codes: Floats) -> Bytes:
    whole = codes.astype(np.uint8)
    packed: Bytes = whole[:, :16] | (whole[:, 16:] << np.uint8(4))
    return packed


def _q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    # Not floor(x + 0.5), which is wrong just below a half.
    rounded = np.copysign(whole + np.floor(2 * (magnitude - whole)), scaled)
    return np.concatenate([_half(scale), rounded.astype(np.int8).view(np.uint8)], axis=1)


def _q4_0(blocks: Floats) -> Bytes:
    farthest = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, farthest, axis=1) / np.float32(-8)
    codes = np.minimum(blocks * _inverse(scale) + np.float32(8.5), np.float32(15))
    return np.concatenate([_half(scale), _nibbles(codes)], axis=1)


def _q4_1(blocks: Floats) -> Bytes:
    smallest = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - smallest) / np.float32(15)
    codes = np.minimum((blocks - smallest) * _inverse(scale) + np.float32(0.5), np.float32(15))
    return np.concatenate([_half(scale), _half(smallest), _nibbles(codes)], axis=1)


_ENCODE: dict[str, Callable[[Floats], Bytes]] = {"q8_0": _q8_0, "q4_0": _q4_0, "q4_1": _q4_1}

#: What `encode` can make.
ENCODED = tuple(_ENCODE)
