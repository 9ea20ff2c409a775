"""Tile functions: the machine code of one op for some of its rows.

Every op is compiled to one LLVM function with the same shape of signature,

    void tile(ptr operand…, ptr scalar…, ptr result, i64 lo, i64 hi, i64 count, ptr scratch)

(a `scalar` for each attribute that is a number in memory, `result` only where the op has one),
which computes rows lo … hi of the result for the first `count` tokens of the step. What a row is,
`hotloop.ir.ops` says. A tile function is pure but for its result, the state that the op writes, and
`scratch`, which belongs to the calling thread. It computes each row by itself in a fixed order, so
neither the tiling nor the number of threads can change a bit.

Layouts in memory (all buffers 64-byte aligned, rows padded so that vectors may run over):

    f32|i32[T,N]  rows of round_up(N, 16) elements
    q8[T,K]       per token K int8, then K/32 f32 scales, then K/32 f32 scale × (sum of the int8s),
                  then K/16 i32 sums of 16 int8s; each token's record is padded to 64 bytes
    weights       packed by `hotloop.kernels.pack`
    keys          f16|f32[pages, heads, page, head_dim], as [page][head][page / 16][head_dim][16]
    values        f16|f32[pages, heads, page, head_dim], row-major; a page is a multiple of 16
    both          i8[pages, heads, page, width], as `hotloop.kernels.cache_codes` has it
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from llvmlite import ir

from hotloop.ir.graph import Attr
from hotloop.ir.ops import OPS, row_count
from hotloop.ir.types import TensorType
from hotloop.lang import Module, Pointer, Value, constant, f32, function, i32, i64, ptr


@dataclass(frozen=True)
class OpSpec:
    """What a tile function is specialised on; `scalars` are attributes that it reads in memory."""

    name: str
    operands: tuple[TensorType, ...]
    result: TensorType | None
    attrs: tuple[tuple[str, Attr], ...] = ()
    scalars: tuple[str, ...] = ()

    def attr(self, name: str) -> Attr:
        return dict(self.attrs)[name]

    @property
    def rows(self) -> int:
        """Rows of the whole op, in the unit that `OpDef.rows` names."""
        return row_count(self.name, self.operands, self.result)

    @property
    def cases(self) -> tuple["OpSpec", ...]:
        """Itself, or one for each format where an operand has variants."""
        return tuple(
            replace(self, operands=operands)
            for operands in product(*(type.cases for type in self.operands))
        )


@dataclass
class Tile:
    """The arguments of the tile function being traced."""

    spec: OpSpec
    operands: list[Pointer]
    result: Pointer | None
    lo: Value
    hi: Value
    count: Value
    scratch: Pointer
    scalars: Mapping[str, Pointer]

    def scalar(self, name: str) -> Value:
        """An attribute as a value, f32 or i64: a constant, or what is in memory."""
        whole = OPS[self.spec.name].scalars[name] == "i32"
        if name not in self.spec.scalars:
            number = self.spec.attr(name)
            assert not isinstance(number, str)
            return constant(number, i64 if whole else f32)
        pointer = self.scalars[name]
        return pointer.cast(i32).load().to(i64) if whole else pointer.cast(f32).load()


@dataclass(frozen=True)
class TileKernel:
    """How an op is compiled: its body, and the scratch bytes that a thread needs for it."""

    body: Callable[[Tile], None]
    scratch: Callable[[OpSpec], int]


KERNELS: dict[str, TileKernel] = {}


def kernel(
    name: str, scratch: Callable[[OpSpec], int] = lambda spec: 0
) -> Callable[[Callable[[Tile], None]], Callable[[Tile], None]]:
    """Register the decorated body as the kernel of op `name`."""

    def register(body: Callable[[Tile], None]) -> Callable[[Tile], None]:
        KERNELS[name] = TileKernel(body, scratch)
        return body

    return register


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def row_stride(width: int) -> int:
    """Elements from one row of an f32 or i32 activation to the next."""
    return _odd_lines(width * 4) // 4


def q8_stride(width: int) -> int:
    """Bytes from one token's q8 record to the next."""
    return _odd_lines(width + width // 32 * 16)


def _odd_lines(nbytes: int) -> int:
    """Round up to an odd number of cache lines.

    A column of many rows then lies in as many sets of a cache, where rows a power of two apart
    would share a few and drive each other out.
    """
    return (-(-nbytes // 64) | 1) * 64


def buffer_bytes(type: TensorType) -> int:
    """Bytes of a value in memory (not of a packed weight: `hotloop.kernels.pack` knows those)."""
    if type.format.name == "q8":
        return type.shape[0] * q8_stride(type.shape[1])
    if type.format.name in ("f32", "i32") and len(type.shape) == 2:
        return type.shape[0] * row_stride(type.shape[1]) * 4
    return round_up(type.nbytes, 64)


def define(module: Module, spec: OpSpec, name: str) -> ir.Function:
    """Trace the tile function of `spec` into `module`."""
    params = [(f"operand{i}", ptr) for i in range(len(spec.operands))]
    params += [(name, ptr) for name in spec.scalars]
    if spec.result is not None:
        params.append(("result", ptr))
    params += [("lo", i64), ("hi", i64), ("count", i64), ("scratch", ptr)]
    with function(module, name, params, noinline=True) as arguments:
        *pointers, lo, hi, count, scratch = arguments
        addresses = [pointer for pointer in pointers if isinstance(pointer, Pointer)]
        assert isinstance(scratch, Pointer)
        operands = addresses[: len(spec.operands)]
        scalars = dict(zip(spec.scalars, addresses[len(operands) :], strict=False))
        result = addresses[-1] if spec.result is not None else None
        KERNELS[spec.name].body(Tile(spec, operands, result, lo, hi, count, scratch, scalars))
    return module.functions[name]
