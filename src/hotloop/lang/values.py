"""Values: Python objects that stand for numbers, vectors and pointers of the traced function.

Operators trace the instruction they name. Integers and floats of Python become constants of the
other operand's type. Nothing is reassociated or contracted: what a kernel spells out is what runs,
so every rung of the ladder and every thread count gives the same bits.
"""

from collections.abc import Sequence
from typing import Union

from llvmlite import ir

from hotloop.lang.trace import current
from hotloop.lang.types import Type, bool_, f16, f32, i64, ptr, u8, u16, u32

Operand = Union["Value", int, float]


class Value:
    """A traced value: LLVM's value and our type."""

    __slots__ = ("llvm", "type")

    def __init__(self, llvm: ir.Value, type: Type) -> None:
        self.llvm = llvm
        self.type = type

    def get(self) -> "Value":
        return self

    # arithmetic

    def __add__(self, other: Operand) -> "Value":
        return _binary("fadd", "add", "add", self, other)

    def __radd__(self, other: Operand) -> "Value":
        return as_value(other, self.type) + self

    def __sub__(self, other: Operand) -> "Value":
        return _binary("fsub", "sub", "sub", self, other)

    def __rsub__(self, other: Operand) -> "Value":
        return as_value(other, self.type) - self

    def __mul__(self, other: Operand) -> "Value":
        return _binary("fmul", "mul", "mul", self, other)

    def __rmul__(self, other: Operand) -> "Value":
        return as_value(other, self.type) * self

    def __truediv__(self, other: Operand) -> "Value":
        return _binary("fdiv", None, None, self, other)

    def __rtruediv__(self, other: Operand) -> "Value":
        return as_value(other, self.type) / self

    def __floordiv__(self, other: Operand) -> "Value":
        """Integer division, rounding towards zero as the machine does."""
        return _binary(None, "sdiv", "udiv", self, other)

    def __mod__(self, other: Operand) -> "Value":
        return _binary(None, "srem", "urem", self, other)

    def __neg__(self) -> "Value":
        value = self.get()
        if value.type.is_float:
            return Value(current().builder.fneg(value.llvm), value.type)
        return 0 - value

    # bits

    def __and__(self, other: Operand) -> "Value":
        return _binary(None, "and_", "and_", self, other)

    def __or__(self, other: Operand) -> "Value":
        return _binary(None, "or_", "or_", self, other)

    def __xor__(self, other: Operand) -> "Value":
        return _binary(None, "xor", "xor", self, other)

    def __lshift__(self, other: Operand) -> "Value":
        return _binary(None, "shl", "shl", self, other)

    def __rshift__(self, other: Operand) -> "Value":
        """Arithmetic for signed types, logical for unsigned ones."""
        return _binary(None, "ashr", "lshr", self, other)

    def __invert__(self) -> "Value":
        return self ^ (1 if self.type.kind == "bool" else -1)

    # comparisons: lanes of bool

    def __lt__(self, other: Operand) -> "Value":
        return _compare("<", self, other)

    def __le__(self, other: Operand) -> "Value":
        return _compare("<=", self, other)

    def __gt__(self, other: Operand) -> "Value":
        return _compare(">", self, other)

    def __ge__(self, other: Operand) -> "Value":
        return _compare(">=", self, other)

    def equals(self, other: Operand) -> "Value":
        return _compare("==", self, other)

    def differs(self, other: Operand) -> "Value":
        return _compare("!=", self, other)

    # conversions

    def to(self, target: Type) -> "Value":
        """The same number in another type; lanes stay (a scalar type means each lane)."""
        value = self.get()
        if target.lanes == 0:
            target = target * value.type.lanes
        return Value(_convert(value, target), target)

    def bitcast(self, target: Type) -> "Value":
        value = self.get()
        return Value(current().builder.bitcast(value.llvm, target.llvm), target)

    def broadcast(self, lanes: int) -> "Value":
        """This scalar in every lane."""
        value = self.get()
        builder = current().builder
        vector = value.type * lanes
        one = builder.insert_element(
            ir.Constant(vector.llvm, ir.Undefined), value.llvm, ir.Constant(ir.IntType(32), 0)
        )
        mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        return Value(builder.shuffle_vector(one, one, mask), vector)

    def lane(self, index: Operand) -> "Value":
        value = self.get()
        at = as_value(index, i64)
        return Value(current().builder.extract_element(value.llvm, at.llvm), value.type.scalar)

    def shuffle(self, lanes: list[int], other: "Value | None" = None) -> "Value":
        """Lanes picked by number; numbers from `len(self)` on pick from `other`."""
        value = self.get()
        second = (other or self).get()
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        llvm = current().builder.shuffle_vector(value.llvm, second.llvm, mask)
        return Value(llvm, value.type * len(lanes))

    @property
    def low(self) -> "Value":
        """The lower half of the lanes."""
        return self.shuffle(list(range(self.type.lanes // 2)))

    @property
    def high(self) -> "Value":
        """The upper half of the lanes."""
        return self.shuffle(list(range(self.type.lanes // 2, self.type.lanes)))


class Var(Value):
    """A mutable local: reading takes its value now, `+=` and `set` write it.

    LLVM turns it into registers, so a loop that updates a Var costs what a carried register costs.
    """

    __slots__ = ("slot",)

    def __init__(self, init: Value) -> None:
        init = init.get()
        super().__init__(init.llvm, init.type)
        self.slot = current().alloca(init.type)
        self.set(init)

    def get(self) -> Value:
        return Value(current().builder.load(self.slot, typ=self.type.llvm), self.type)

    def set(self, value: Operand) -> None:
        current().builder.store(as_value(value, self.type).llvm, self.slot)

    def __iadd__(self, other: Operand) -> "Var":
        self.set(self + other)
        return self

    def __isub__(self, other: Operand) -> "Var":
        self.set(self - other)
        return self

    def __imul__(self, other: Operand) -> "Var":
        self.set(self * other)
        return self


class Pointer(Value):
    """An address of elements of type `element`; indices and offsets count elements."""

    __slots__ = ("element",)

    def __init__(self, llvm: ir.Value, element: Type = u8) -> None:
        super().__init__(llvm, ptr)
        self.element = element

    def cast(self, element: Type) -> "Pointer":
        return Pointer(self.llvm, element)

    def at(self, index: Operand) -> "Pointer":
        """The address `index` elements on."""
        offset = as_value(index, i64).to(i64)
        llvm = current().builder.gep(self.llvm, [offset.llvm], source_etype=self.element.llvm)
        return Pointer(llvm, self.element)

    def load(self, index: Operand = 0, lanes: int = 0, align: int | None = None) -> Value:
        """Element `index`, or the `lanes` elements from there on (aligned to one element)."""
        type = self.element * lanes
        address = self.at(index).llvm
        align = align or self.element.size
        return Value(current().builder.load(address, typ=type.llvm, align=align), type)

    def store(self, value: Operand, index: Operand = 0, align: int | None = None) -> None:
        """Write an element, or a vector of them, from `index` on."""
        stored = as_value(value, self.element)
        if stored.type.scalar.llvm != self.element.llvm:
            raise TypeError(f"the pointer is to {self.element} elements, not {stored.type}")
        address = self.at(index).llvm
        current().builder.store(stored.llvm, address, align=align or self.element.size)

    def __getitem__(self, index: Operand) -> Value:
        return self.load(index)

    def __setitem__(self, index: Operand, value: Operand) -> None:
        self.store(as_value(value, self.element), index)

    def is_null(self) -> Value:
        number = current().builder.ptrtoint(self.llvm, i64.llvm)
        return Value(number, i64).equals(0)

    def load_pointer(self, index: Operand = 0, element: Type = u8) -> "Pointer":
        """The pointer stored as element `index` of an array of pointers."""
        return Pointer(self.cast(ptr).load(index).llvm, element)


def as_value(operand: Operand, type: Type) -> Value:
    """`operand` as a value: numbers become constants of `type`."""
    if isinstance(operand, Value):
        return operand.get()
    return constant(operand, type)


def constant(number: float, type: Type) -> Value:
    """A constant, in every lane if `type` is a vector."""
    number = float(number) if type.is_float else int(number)
    if type.is_float and type.bits == 16:
        # llvmlite prints half constants wrongly; a conversion folds to the same thing.
        return constant(number, f32 * type.lanes).to(type)
    payload = [number] * type.lanes if type.lanes else number
    return Value(ir.Constant(type.llvm, payload), type)


def vector(numbers: Sequence[float], type: Type) -> Value:
    """A constant with a number of its own in each lane; `type` is that of one."""
    lanes = [float(n) if type.is_float else int(n) for n in numbers]
    return Value(ir.Constant((type * len(lanes)).llvm, lanes), type * len(lanes))


def zeros(type: Type) -> Value:
    return constant(0, type)


def null() -> Pointer:
    return Pointer(ir.Constant(ir.PointerType(), None))


def _match(left: Value, right: Operand) -> tuple[Value, Value]:
    a, b = left.get(), as_value(right, left.type)
    if a.type.lanes and not b.type.lanes:
        b = b.broadcast(a.type.lanes)
    elif b.type.lanes and not a.type.lanes:
        a = a.broadcast(b.type.lanes)
    if a.type != b.type:
        raise TypeError(f"operands are {a.type} and {b.type}; convert one with .to()")
    return a, b


def _binary(
    on_float: str | None,
    on_signed: str | None,
    on_unsigned: str | None,
    left: Value,
    right: Operand,
) -> Value:
    a, b = _match(left, right)
    name = on_float if a.type.is_float else on_signed if a.type.is_signed else on_unsigned
    if name is None:
        raise TypeError(f"this operator has no meaning for {a.type}")
    return Value(getattr(current().builder, name)(a.llvm, b.llvm), a.type)


def _compare(how: str, left: Value, right: Operand) -> Value:
    a, b = _match(left, right)
    builder = current().builder
    if a.type.is_float:
        llvm = builder.fcmp_ordered(how, a.llvm, b.llvm)
    elif a.type.is_signed:
        llvm = builder.icmp_signed(how, a.llvm, b.llvm)
    else:
        llvm = builder.icmp_unsigned(how, a.llvm, b.llvm)
    return Value(llvm, bool_ * a.type.lanes)


def _convert(value: Value, target: Type) -> ir.Value:
    builder, source = current().builder, value.type
    if source.is_float and target.is_float:
        if source.bits == target.bits:
            return value.llvm
        if {source.bits, target.bits} == {16, 32} and not current().module.target.half:
            return (_half_to_float if source.bits == 16 else _float_to_half)(value).llvm
        resize = builder.fpext if target.bits > source.bits else builder.fptrunc
        return resize(value.llvm, target.llvm)
    if source.is_float:
        round_to = builder.fptosi if target.is_signed else builder.fptoui
        return round_to(value.llvm, target.llvm)
    if target.is_float:
        make = builder.sitofp if source.is_signed else builder.uitofp
        return make(value.llvm, target.llvm)
    if target.bits == source.bits:
        return value.llvm
    if target.bits < source.bits:
        return builder.trunc(value.llvm, target.llvm)
    extend = builder.sext if source.is_signed else builder.zext
    return extend(value.llvm, target.llvm)


def _half_to_float(value: Value) -> Value:
    """float32 of float16 lanes by integer arithmetic.

    With its exponent field 112 too small, a half's float32 counts 2^-112 of it, subnormals
    included; only infinity and NaN need the whole exponent set.
    """
    lanes = value.type.lanes
    bits = value.bitcast(u16 * lanes).to(u32)
    magnitude = (bits & 0x7FFF) << 13
    scaled = magnitude.bitcast(f32 * lanes) * 2.0**112
    special = (magnitude | 0x7F800000).bitcast(f32 * lanes)
    finite = magnitude < 0x0F800000
    chosen = current().builder.select(finite.llvm, scaled.llvm, special.llvm)
    sign = (bits & 0x8000) << 16
    return (Value(chosen, f32 * lanes).bitcast(u32 * lanes) | sign).bitcast(f32 * lanes)


def _float_to_half(value: Value) -> Value:
    """float16 of float32 lanes by integer arithmetic, rounding to nearest even.

    Below 2^-14 a half counts units of 2^-24: adding 0.5 rounds to those, in the float's last bits.
    """
    lanes, select = value.type.lanes, current().builder.select
    bits = value.bitcast(u32 * lanes)
    magnitude = bits & 0x7FFFFFFF
    subnormal = (magnitude.bitcast(f32 * lanes) + 0.5).bitcast(u32 * lanes) - 0x3F000000
    odd = (magnitude >> 13) & 1
    normal = (magnitude + odd + 0xFFF - (112 << 23)) >> 13
    nan_or_infinite = 0x7C00 + (magnitude > 0x7F800000).to(u32) * 0x200
    small, large = magnitude < 0x38800000, magnitude >= 0x477FF000
    half = select(small.llvm, subnormal.llvm, normal.llvm)
    half = select(large.llvm, nan_or_infinite.llvm, half)
    sign = (bits >> 16) & 0x8000
    return (Value(half, u32 * lanes) | sign).to(u16).bitcast(f16 * lanes)


__all__ = [
    "Operand",
    "Pointer",
    "Value",
    "Var",
    "as_value",
    "constant",
    "null",
    "vector",
    "zeros",
]
