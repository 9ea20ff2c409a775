"""Tensors of a safetensors file as they are stored, whatever their dtype."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.model_file import WeightData
from hotloop.ir.types import FORMATS, TensorType, tensor

#: NumPy's names of safetensors' dtypes; bfloat16 and e4m3 as their bits.
DTYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "U8": "u1",
    "I8": "i1",
    "I32": "<i4",
    "I64": "<i8",
}
#: Those that are weights as they stand.
PLAIN = ("F32", "F16", "BF16")


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor: `data` is a flat uint8 view of the mapped file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def plain(self) -> bool:
        return self.dtype in PLAIN

    def array(self) -> NDArray[np.generic]:
        """As an array; bfloat16 and e4m3 as their bits."""
        return self.data.view(DTYPES[self.dtype]).reshape(self.shape)

    def floats(self) -> NDArray[np.float32]:
        """The numbers of a float tensor as float32."""
        values = self.array()
        if self.dtype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)

    def bytes(self) -> WeightData:
        """As what a weight is made of, which only has pages to give back."""
        return WeightData(self.name, tensor("i32", 0), self.data)

    def weight(self) -> WeightData:
        """A plain tensor as a weight."""
        return WeightData(self.name, TensorType(FORMATS[self.dtype.lower()], self.shape), self.data)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{','.join(map(str, self.shape))}]"
