"""GGUF's smallest formats, IQ1_S to IQ3_S, TQ1_0 and TQ2_0, unpacked at load without loss.

The `gguf` package has their tables and knows what blocks mean. It is asked for blocks with all
scales at their smallest and a d of 1, so that what it answers are the codes times a constant; the
scales are read here. What comes out are the formats of `hotloop.ir.unpacked`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.model_file import WeightData
from hotloop.ir.types import FORMATS, Format, TensorType
from hotloop.ir.unpacked import BLOCK, BOOKS, FACTORS
from hotloop.util.errors import UnsupportedError

Bytes = NDArray[np.uint8]
Scales = NDArray[np.uint8]

#: Blocks at a time: what the package makes of them stays in a core's cache.
_CHUNK = 512
_ONE = np.float16(1).view(np.uint16)


@dataclass(frozen=True)
class _Small:
    """How a format's blocks of 256 elements are taken apart."""

    block_bytes: int
    unpacked: str
    take: Callable[[Bytes], tuple[NDArray[np.float16], Scales]]
    """d [n] and the scales [n, 16] of blocks [n, block_bytes], which it sets to 1 and 0."""


def _take_d(blocks: Bytes, at: int = 0) -> NDArray[np.float16]:
    d = blocks[:, at : at + 2].copy().view("<f2")[:, 0]
    blocks[:, at : at + 2] = np.array([_ONE], "<u2").view(np.uint8)
    return d


def _odd(scales: NDArray[np.integer]) -> Scales:
    """2·s + 1 for each 16 elements, of s for each 16 or 32."""
    repeated: Scales = np.repeat(2 * scales + 1, 16 // scales.shape[1], axis=1).astype(np.uint8)
    return repeated


def _nibbles(packed: Bytes) -> Bytes:
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _top_four(first: int, step: int) -> Callable[[Bytes], tuple[NDArray[np.float16], Scales]]:
    """Scales in the uppermost four bits of a uint32, of which there are eight."""

    def take(blocks: Bytes) -> tuple[NDArray[np.float16], Scales]:
        tops = blocks[:, first::step][:, :8]
        scales = tops >> 4
        blocks[:, first::step][:, :8] = tops & 15
        return _take_d(blocks), _odd(scales)

    return take


def _last_bytes(count: int) -> Callable[[Bytes], tuple[NDArray[np.float16], Scales]]:
    """Scales in the nibbles of a block's last bytes."""

    def take(blocks: Bytes) -> tuple[NDArray[np.float16], Scales]:
        scales = _nibbles(blocks[:, -count:])
        blocks[:, -count:] = 0
        return _take_d(blocks), _odd(scales)

    return take


def _iq1_s(blocks: Bytes) -> tuple[NDArray[np.float16], Scales]:
    """Scales in bits 12 to 14 of eight uint16 at the end."""
    high = blocks[:, 35::2]
    scales = high >> 4 & 7
    blocks[:, 35::2] = high & 0x8F
    return _take_d(blocks), _odd(scales)


def _iq1_m(blocks: Bytes) -> tuple[NDArray[np.float16], Scales]:
    """Four uint16 at the end: four scales of three bits each, above them four bits of d each."""
    words = blocks[:, 48:56].copy().view("<u2")
    scales = np.stack([words >> shift & 7 for shift in (0, 3, 6, 9)], axis=2).astype(np.uint8)
    tops = words >> 12
    d = (tops[:, 0] | tops[:, 1] << 4 | tops[:, 2] << 8 | tops[:, 3] << 12).astype("<u2")
    ones = np.array([(_ONE >> shift & 15) << 12 for shift in (0, 4, 8, 12)], "<u2")
    blocks[:, 48:56] = ones.view(np.uint8)
    return d.view("<f2"), _odd(scales.reshape(len(blocks), 16))


def _ternary(blocks: Bytes) -> tuple[NDArray[np.float16], Scales]:
    d = _take_d(blocks, blocks.shape[1] - 2)
    return d, np.ones((len(blocks), 16), np.uint8)


_SMALL = {
    "IQ1_S": _Small(50, "iq1_u", _iq1_s),
    "IQ1_M": _Small(56, "iq1_u", _iq1_m),
    "IQ2_XXS": _Small(66, "iq2_u", _top_four(9, 8)),
    "IQ2_XS": _Small(74, "iq2_u", _last_bytes(8)),
    "IQ2_S": _Small(82, "iq2_u", _last_bytes(8)),
    "IQ3_XXS": _Small(98, "iq3_xxs_u", _top_four(69, 4)),
    "IQ3_S": _Small(110, "iq3_s_u", _last_bytes(4)),
    "TQ1_0": _Small(54, "tq_u", _ternary),
    "TQ2_0": _Small(66, "tq_u", _ternary),
}
#: ggml's names of the formats that `unpacked` takes, and what their blocks are.
STORED = {name: Format(name.lower(), 256, small.block_bytes) for name, small in _SMALL.items()}


def unpacked(weight: WeightData) -> WeightData:
    """A weight of one of the `STORED` formats in its unpacked format."""
    small = _SMALL[weight.type.format.name.upper()]
    type = TensorType(FORMATS[small.unpacked], weight.type.shape)

    def make() -> Bytes:
        stored = weight.data.reshape(-1, small.block_bytes)
        blocks = np.empty(len(stored), BLOCK)
        for start in range(0, len(stored), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            _unpack(stored[chunk].copy(), weight.type.format.name.upper(), blocks[chunk])
        return blocks.view(np.uint8)

    return WeightData(weight.name, type, make, (weight,))


def _unpack(stored: Bytes, name: str, blocks: NDArray[np.void]) -> None:
    try:
        import gguf
    except ImportError:
        raise UnsupportedError(
            f"{name} needs the tables of the gguf package; install it: pip install hotloop[iq]."
        ) from None
    small = _SMALL[name]
    blocks["d"], blocks["scales"] = small.take(stored)
    values = gguf.dequantize(stored, gguf.GGMLQuantizationType[name])
    numbers = np.rint(values / np.float32(FACTORS[small.unpacked])).astype(np.int8)
    places = np.zeros(256, np.uint8)
    places[np.array(BOOKS[small.unpacked])] = np.arange(len(BOOKS[small.unpacked]))
    halves = places[numbers.view(np.uint8)].reshape(len(blocks), 8, 2, 16)
    blocks["fours"] = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(blocks), 128)
