"""The types of the kernel language: numbers, vectors of numbers, pointers."""

from dataclasses import dataclass, replace
from typing import Literal

from llvmlite import ir

Kind = Literal["signed", "unsigned", "float", "bool", "pointer"]


@dataclass(frozen=True)
class Type:
    """A number of `bits` bits, or `lanes` of them; LLVM's integers have no sign, ours do."""

    kind: Kind
    bits: int
    lanes: int = 0
    """0 for a scalar."""

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_signed(self) -> bool:
        return self.kind == "signed"

    @property
    def scalar(self) -> "Type":
        return replace(self, lanes=0)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return max(1, self.bits // 8) * max(1, self.lanes)

    @property
    def llvm(self) -> ir.Type:
        element: ir.Type
        if self.kind == "pointer":
            element = ir.PointerType()
        elif self.kind == "float":
            element = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}[self.bits]
        else:
            element = ir.IntType(self.bits)
        return ir.VectorType(element, self.lanes) if self.lanes else element

    def __mul__(self, lanes: int) -> "Type":
        """`f32 * 8` is the vector type of eight float32."""
        return replace(self, lanes=lanes)

    def __str__(self) -> str:
        letter = {"signed": "i", "unsigned": "u", "float": "f", "bool": "b", "pointer": "p"}
        name = f"{letter[self.kind]}{self.bits}"
        return f"{name}x{self.lanes}" if self.lanes else name


bool_ = Type("bool", 1)
i8, i16, i32, i64 = (Type("signed", bits) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (Type("unsigned", bits) for bits in (8, 16, 32, 64))
f16, f32, f64 = (Type("float", bits) for bits in (16, 32, 64))
ptr = Type("pointer", 64)
