"""Element formats and tensor types.

A *format* says how numbers are stored: plain (`f32`), or in blocks with a scale (`q4_1`). The
block formats are those of GGUF, byte for byte, so a weight's type says what its bytes in the file
mean; the packed layout that kernels read is the backend's affair. The pre-quantised layouts of
safetensors files become the formats of `hotloop.ir.grouped` when they are read, GGUF's smallest
ones those of `hotloop.ir.unpacked`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from types import MappingProxyType

import numpy as np


@dataclass(frozen=True)
class Format:
    """How the elements of a tensor are stored: `block` elements in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int
    numpy: np.dtype | None = None
    """The dtype of one element where the format is plain, else None."""
    integers: bool = True
    """Whether the codes of a block are integers, so that 8-bit dot products can take them."""
    made_of: str = ""
    """What files hold instead, where the format is hotloop's own."""
    variants: tuple["Format", ...] = ()
    """The formats of which it is one, where a loop chooses it in each iteration (`q4_0|q8_0`)."""

    @property
    def quantised(self) -> bool:
        return self.block > 1

    def __str__(self) -> str:
        return self.name


def _plain(name: str, dtype: str) -> Format:
    return Format(name, 1, np.dtype(dtype).itemsize, np.dtype(dtype))


#: Sampling parameters and the mailbox between Python and a running launch: one struct, whose
#: fields kernels address by offset. Little-endian, as all targets are.
CONTROL = np.dtype(
    [
        ("seed", "<u8"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("repeat_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("top_k", "<i4"),
        ("repeat_last_n", "<i4"),
        ("prompt", "<i4"),  # where the output begins: tokens of the ring that were not generated
        ("biased", "<i4"),  # whether sampling adds the bias of the sequence to its logits
        ("last_pos", "<i4"),  # the launch stops after the token for this position
        ("stop_count", "<i4"),  # how many of stop_ids are valid
        ("stop_ids", "<i4", (32,)),
        ("cancel", "<i4"),  # set by Python: stop after the token in flight
        ("bell", "<i4"),  # 1 + the file descriptor that a byte is written to at each step; 0: none
        ("finish", "<i4"),  # set by the launch: 0 running, 1 length, 2 stop token, 3 cancelled
        ("steps", "<i4"),  # of a launch that speculates: passes over the model …
        ("drafted", "<i4"),  # … and tokens that were guessed for them
        ("published", "<i8"),  # tokens valid in the token ring, prompt included
    ],
    align=True,
)

#: Columns that share a scale in the formats of `hotloop.ir.grouped`.
GROUPS = (32, 64, 128)

_INTEGERS = "AWQ, GPTQ or compressed-tensors"

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            _plain("f32", "<f4"),
            _plain("f16", "<f2"),
            _plain("bf16", "<u2"),
            _plain("i32", "<i4"),
            _plain("i8", "<i1"),
            Format("control", 1, CONTROL.itemsize, CONTROL),
            Format("q8_0", 32, 34),
            Format("q4_0", 32, 18),
            Format("q4_1", 32, 20),
            Format("q5_0", 32, 22),
            Format("q5_1", 32, 24),
            Format("q2_k", 256, 84),
            Format("q3_k", 256, 110),
            Format("q4_k", 256, 144),
            Format("q5_k", 256, 176),
            Format("q6_k", 256, 210),
            Format("iq4_nl", 32, 18),
            Format("iq4_xs", 256, 136),
            Format("mxfp4", 32, 17),
            *(Format(f"u4_{n}", n, 6 + n // 2, made_of=_INTEGERS) for n in GROUPS),
            *(Format(f"u8_{n}", n, 6 + n, made_of=_INTEGERS) for n in GROUPS),
            *(Format(f"f8_{n}", n, 4 + n, integers=False, made_of="FP8 (e4m3)") for n in GROUPS),
            Format("tq_u", 256, 146, made_of="TQ1_0 or TQ2_0"),
            Format("iq1_u", 256, 146, made_of="IQ1_S or IQ1_M"),
            Format("iq2_u", 256, 146, made_of="IQ2_XXS, IQ2_XS or IQ2_S"),
            Format("iq3_xxs_u", 256, 146, made_of="IQ3_XXS"),
            Format("iq3_s_u", 256, 146, made_of="IQ3_S"),
            # Activations in 8 bit: 32 int8 values, a float32 scale, scale × their sum, and the
            # int32 sum of each half.
            Format("q8", 32, 48),
        )
    }
)


def variant(formats: Iterable[Format]) -> Format:
    """The format that is one of several; blocks and bytes are those of the largest."""
    order = list(FORMATS)
    each = {one for fmt in formats for one in fmt.variants or (fmt,)}
    chosen = sorted(each, key=lambda fmt: order.index(fmt.name))
    largest = max(chosen, key=lambda fmt: fmt.block_bytes / fmt.block)
    name = "|".join(fmt.name for fmt in chosen)
    return Format(name, largest.block, largest.block_bytes, variants=tuple(chosen))


@dataclass(frozen=True)
class TensorType:
    """A format and a shape, row-major: `q4_1[576,1536]` is 576 rows of 1,536 elements."""

    format: Format
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the model file's own layout."""
        return self.elements // self.format.block * self.format.block_bytes

    @property
    def cases(self) -> tuple["TensorType", ...]:
        """The types that a value of this one may have: itself, or those of its variants."""
        formats = self.format.variants or (self.format,)
        return tuple(TensorType(format, self.shape) for format in formats)

    def fits(self, other: "TensorType") -> bool:
        """Whether a value of this type may stand where `other` is expected."""
        return self == other or set(self.cases) <= set(other.cases)

    def __str__(self) -> str:
        return f"{self.format.name}[{','.join(map(str, self.shape))}]"


@cache
def tensor(format_name: str, *shape: int) -> TensorType:
    """Shorthand: `tensor("f32", 1, 576)`."""
    return TensorType(FORMATS[format_name], shape)
