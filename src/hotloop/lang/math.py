"""Operations beyond the operators: fused multiply-add, rounding, reductions, prefetch."""

from collections.abc import Callable

from hotloop.lang.trace import current
from hotloop.lang.types import Type, f32, i32, ptr, u32
from hotloop.lang.values import Operand, Pointer, Value, as_value


def intrinsic(name: str, result: Type, *args: Value) -> Value:
    """Call an LLVM intrinsic by its full name."""
    tracer = current()
    values = [arg.get() for arg in args]
    declared = tracer.module.declare(name, result, [value.type for value in values])
    return Value(tracer.builder.call(declared, [value.llvm for value in values]), result)


def _suffix(type: Type) -> str:
    """LLVM's mangling: v8f32, i16."""
    letter = "f" if type.is_float else "i"
    return f"{f'v{type.lanes}' if type.lanes else ''}{letter}{type.bits}"


def _unary(name: str) -> Callable[[Value], Value]:
    def traced(value: Value) -> Value:
        value = value.get()
        return intrinsic(f"llvm.{name}.{_suffix(value.type)}", value.type, value)

    traced.__name__ = name
    return traced


sqrt = _unary("sqrt")
absolute = _unary("fabs")
round_even = _unary("roundeven")
floor = _unary("floor")


def fma(a: Value, b: Operand, c: Operand) -> Value:
    """a × b + c, rounded once; spelt out, since nothing contracts on its own."""
    a = a.get()
    b, c = as_value(b, a.type), as_value(c, a.type)
    return intrinsic(f"llvm.fma.{_suffix(a.type)}", a.type, a, b, c)


def select(condition: Value, then: Value, other: Operand) -> Value:
    """`then` where the condition holds, else `other`; lane by lane for vectors."""
    then = then.get()
    other = as_value(other, then.type)
    llvm = current().builder.select(condition.get().llvm, then.llvm, other.llvm)
    return Value(llvm, then.type)


def maximum(a: Value, b: Operand) -> Value:
    """The greater; `b` where they are equal or either is NaN, as x86's instruction has it."""
    a = a.get()
    b = as_value(b, a.type)
    return select(a > b, a, b)


def minimum(a: Value, b: Operand) -> Value:
    """The lesser; `b` where they are equal or either is NaN."""
    a = a.get()
    b = as_value(b, a.type)
    return select(a < b, a, b)


def tree(combine: Callable[[Value, Value], Value], value: Value) -> Value:
    """Fold the lanes pairwise, halves together: a fixed order, whatever the CPU."""
    value = value.get()
    while value.type.lanes > 1:
        value = combine(value.low, value.high)
    return value.lane(0)


def sum_lanes(value: Value) -> Value:
    return tree(lambda a, b: a + b, value)


def max_lanes(value: Value) -> Value:
    return tree(maximum, value)


def any_lane(mask: Value) -> Value:
    """Whether any lane of a vector of bool is set."""
    return mask.bitcast(Type("unsigned", mask.type.lanes)).differs(0)


def bf16_to_f32(bits: Value) -> Value:
    """float32 from the 16 bits of a bfloat16 (lanes of u16): its upper half."""
    wide = bits.to(u32) << 16
    return wide.bitcast(f32 * bits.type.lanes)


def prefetch(address: Pointer, locality: int = 3) -> None:
    """Ask for the cache line at `address`; locality 3 keeps it in all levels, 0 passes by."""
    tracer = current()
    declared = tracer.module.declare("llvm.prefetch.p0", None, [ptr, i32, i32, i32])
    constants = [as_value(n, i32).llvm for n in (0, locality, 1)]
    tracer.builder.call(declared, [address.llvm, *constants])
