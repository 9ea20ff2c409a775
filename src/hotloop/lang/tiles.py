"""AMX: tile registers, and sums of products of 8-bit numbers between them.

A tile register holds rows of up to 64 bytes. `multiply` adds to an i32[M, N] tile the products of
an i8[M, K] tile and a u8 or i8[K, N] tile, of which four rows lie interleaved: row k/4 holds, for
each column n, bytes k … k + 3. A thread declares the shapes of all eight registers before it
uses them, and lets go of them when it is done, so that the system need not save them any longer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from hotloop.lang.trace import current
from hotloop.lang.types import i8, i64, ptr
from hotloop.lang.values import Pointer

#: Intel's layout of a tile configuration, 64 bytes: the palette, where an interrupted load goes
#: on, then for each register the bytes of a row (16 bits each, from byte 16 on) and its rows.
_CONFIG_BYTES, _ROW_BYTES_AT, _ROWS_AT, _PALETTE = 64, 16, 48, 1


@dataclass(frozen=True)
class TileRegister:
    """Register `number`, of `rows` rows of `row_bytes` bytes."""

    number: int
    rows: int
    row_bytes: int

    def load(self, memory: Pointer, stride: int) -> None:
        """Rows `stride` bytes apart."""
        _emit("tileloadd64", self.number, memory, stride)

    def store(self, memory: Pointer, stride: int) -> None:
        _emit("tilestored64", self.number, memory, stride)

    def clear(self) -> None:
        _emit("tilezero", self.number)

    def multiply(self, signed: "TileRegister", other: "TileRegister", *, unsigned: bool) -> None:
        """Add the products of int8 with int8 or, where `other` is `unsigned`, with uint8."""
        name = "tdpbsud" if unsigned else "tdpbssd"
        _emit(name, self.number, signed.number, other.number)


@contextmanager
def tile_registers(registers: Sequence[TileRegister]) -> Iterator[None]:
    """Declare the shapes of the registers, and let go of them at the end of the `with`."""
    config = bytearray(_CONFIG_BYTES)
    config[0] = _PALETTE
    for register in registers:
        at = _ROW_BYTES_AT + 2 * register.number
        config[at : at + 2] = register.row_bytes.to_bytes(2, "little")
        config[_ROWS_AT + register.number] = register.rows
    _emit("ldtilecfg", _constant(bytes(config)))
    yield
    _emit("tilerelease")


def _constant(data: bytes) -> Pointer:
    """Where the module keeps `data`."""
    module = current().module.llvm
    name = f"bytes.{data.hex()}"
    if name not in module.globals:
        type = ir.ArrayType(ir.IntType(8), len(data))
        variable = ir.GlobalVariable(module, type, name)
        variable.global_constant, variable.linkage = True, "internal"
        variable.initializer = ir.Constant(type, bytearray(data))
    return Pointer(module.globals[name])


def _emit(name: str, *operands: int | Pointer) -> None:
    """An instruction: registers are 8-bit constants, and what follows an address its stride."""
    values, types = [], []
    for operand in operands:
        if isinstance(operand, Pointer):
            types.append(ptr)
            values.append(operand.llvm)
        else:
            types.append(i64 if ptr in types else i8)
            values.append(ir.Constant(types[-1].llvm, operand))
    declared = current().module.declare(f"llvm.x86.{name}", None, types)
    current().builder.call(declared, values)
