"""Packed weights whose blocks are records: the formats beyond q8_0, q4_0 and q4_1.

Blocks of eight rows that stand side by side become one record, the records of a group follow each
other, so reading a group is reading one stream. A record holds each field of the block for all
eight rows, row by row: codes as 32-bit lanes, four neighbouring columns to a lane, as in `pack`;
scales as float16 or bytes. Codes stay in the planes of the file (`hotloop.ir.k_quants`): packing
only moves lanes. But 6-bit scales become bytes, and the fifth bits of q5_0 and q5_1, of which a row
has 32 in a lane, go to the bytes of their columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.ir import code_books, grouped, k_quants, unpacked
from hotloop.ir.ops import GROUP
from hotloop.ir.types import FORMATS

Array = NDArray[Any]


@dataclass(frozen=True)
class RecordLayout:
    """How the blocks of a format are packed."""

    columns: int
    """Columns of a block."""
    file: np.dtype[Any]
    """A block in the file."""
    record: np.dtype[Any]
    """A record: for each field an array [values of a row][8 rows]."""
    made: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)
    """Fields [..., values of a row] that are made of an array [...] of the file's blocks; the
    others move as they are."""

    def offset(self, field: str) -> int:
        """Bytes from the record's start to a field."""
        assert self.record.fields is not None
        return int(self.record.fields[field][1])

    def pack(self, data: NDArray[np.uint8], out: NDArray[np.uint8], columns: int) -> None:
        """Pack whole groups of rows; `out` has a row for each group, which may end in padding."""
        blocks = columns // self.columns
        rows = data.view(self.file).reshape(len(out), GROUP, blocks)
        used = blocks * self.record.itemsize
        records = out[:, :used].view(self.record)
        for name in self.record.names or ():
            values = self.made[name](rows) if name in self.made else self._moved(rows, name)
            records[name][...] = np.moveaxis(values, 1, -1)
        out[:, used:] = 0

    def _moved(self, blocks: Array, name: str) -> Array:
        """A field as it is, bytes taken four at a time where the record has 32-bit lanes."""
        values = blocks[name]
        if values.ndim == blocks.ndim:
            return values[..., None]
        unit = self.record[name].base
        return values if unit == values.dtype else np.ascontiguousarray(values).view(unit)


def _record(**fields: tuple[str, int]) -> np.dtype[Any]:
    return np.dtype([(name, kind, (count, GROUP)) for name, (kind, count) in fields.items()])


def _fives(bits: Array) -> Array:
    """Bit 4b + i of each uint32 becomes bit b of byte i: a bit for each column of four lanes.

    Each line exchanges two of the five binary digits of a bit's place, b2 b1 b0 i1 i0.
    """
    for distance, mask in ((3, 0x0A0A0A0A), (6, 0x00CC00CC), (12, 0x0000F0F0), (8, 0x0000FF00)):
        moved = (bits ^ (bits >> np.uint32(distance))) & np.uint32(mask)
        bits = bits ^ moved ^ (moved << np.uint32(distance))
    return bits


def _fifth_bits(blocks: Array) -> Array:
    return _fives(blocks["ones"])[..., None]


def _scales(blocks: Array) -> Array:
    return k_quants.scales_and_minima(blocks["scales"])[0]


def _minima(blocks: Array) -> Array:
    return k_quants.scales_and_minima(blocks["scales"])[1]


def _scales_q3_k(blocks: Array) -> Array:
    return k_quants.signed_scales(blocks["scales"])


def _scales_iq4_xs(blocks: Array) -> Array:
    return code_books.signed_scales(blocks["scales_low"], blocks["scales_high"])


def _grouped(name: str) -> RecordLayout:
    file = grouped.FILE[name]
    numbers = {
        field: (file[field].str, 1) for field in ("scale", "zero") if field in (file.names or ())
    }
    codes = ("<u4", file["codes"].shape[0] // 4)
    return RecordLayout(FORMATS[name].block, file, _record(codes=codes, **numbers))


_Q5 = [("ones", "<u4"), ("fours", "u1", (16,))]
_FOURS_AND_SCALES = {"fours": ("<u4", 32), "scales": ("u1", 8), "minima": ("u1", 8)}
_D, _D_AND_DMIN = {"d": ("<f2", 1)}, {"d": ("<f2", 1), "dmin": ("<f2", 1)}

RECORDS: Mapping[str, RecordLayout] = {
    "q5_0": RecordLayout(
        32,
        np.dtype([("d", "<f2"), *_Q5]),
        _record(fours=("<u4", 4), ones=("<u4", 1), **_D),
        {"ones": _fifth_bits},
    ),
    "q5_1": RecordLayout(
        32,
        np.dtype([("d", "<f2"), ("m", "<f2"), *_Q5]),
        _record(fours=("<u4", 4), ones=("<u4", 1), m=("<f2", 1), **_D),
        {"ones": _fifth_bits},
    ),
    "q2_k": RecordLayout(
        256, k_quants.FILE["q2_k"], _record(twos=("<u4", 16), scales=("u1", 16), **_D_AND_DMIN)
    ),
    "q3_k": RecordLayout(
        256,
        k_quants.FILE["q3_k"],
        _record(twos=("<u4", 16), ones=("<u4", 8), scales=("i1", 16), **_D),
        {"scales": _scales_q3_k},
    ),
    "q4_k": RecordLayout(
        256,
        k_quants.FILE["q4_k"],
        _record(**_FOURS_AND_SCALES, **_D_AND_DMIN),
        {"scales": _scales, "minima": _minima},
    ),
    "q5_k": RecordLayout(
        256,
        k_quants.FILE["q5_k"],
        _record(**_FOURS_AND_SCALES, ones=("<u4", 8), **_D_AND_DMIN),
        {"scales": _scales, "minima": _minima},
    ),
    "q6_k": RecordLayout(
        256,
        k_quants.FILE["q6_k"],
        _record(fours=("<u4", 32), twos=("<u4", 16), scales=("i1", 16), **_D),
    ),
    "iq4_nl": RecordLayout(32, code_books.FILE["iq4_nl"], _record(fours=("<u4", 4), **_D)),
    "iq4_xs": RecordLayout(
        256,
        code_books.FILE["iq4_xs"],
        _record(fours=("<u4", 32), scales=("i1", 8), **_D),
        {"scales": _scales_iq4_xs},
    ),
    "mxfp4": RecordLayout(
        32, code_books.FILE["mxfp4"], _record(fours=("<u4", 4), exponent=("u1", 1))
    ),
    **{name: _grouped(name) for name in grouped.FILE},
    **{
        name: RecordLayout(256, unpacked.BLOCK, _record(fours=("<u4", 32), scales=("i1", 16), **_D))
        for name in unpacked.BOOKS
    },
}
