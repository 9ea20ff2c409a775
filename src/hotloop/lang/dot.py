"""Dot products of integer lanes: exact sums of neighbouring products.

Where the target has an instruction that fits, it is used; elsewhere the same integers come from
plain vector arithmetic. Callers see to it that no intermediate sum overflows, and say why.
"""

from hotloop.lang.math import intrinsic
from hotloop.lang.trace import current
from hotloop.lang.types import bool_, i8, i16, i32, u8
from hotloop.lang.values import Value, as_value, zeros


def dot2(a: Value, b: Value) -> Value:
    """Sums of two neighbouring products: u8 × i8 lanes → i16 lanes, half as many.

    AVX2's instruction saturates, so every sum of two must fit an int16.
    """
    a, b = a.get(), b.get()
    if a.type.scalar != u8 or b.type.scalar != i8:
        raise TypeError(f"dot2 takes u8 and i8 lanes, not {a.type} and {b.type}")
    if current().module.target.avx2 and a.type.lanes == 32:
        return intrinsic("llvm.x86.avx2.pmadd.ub.sw", i16 * 16, a, b)
    return add_neighbours(a.to(i16) * b.to(i16))


def dot4(a: Value, b: Value, total: Value | None = None) -> Value:
    """`total` + sums of four neighbouring products: u8 × i8 lanes → i32 lanes, a quarter as many.

    Where the target lacks `vnni`, every sum of two must fit an int16, as for `dot2`.
    """
    a, b = a.get(), b.get()
    if a.type.scalar != u8 or b.type.scalar != i8:
        raise TypeError(f"dot4 takes u8 and i8 lanes, not {a.type} and {b.type}")
    target = current().module.target
    if (target.vnni and a.type.lanes == 32) or (target.vnni512 and a.type.lanes == 64):
        lanes = a.type.lanes // 4
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return intrinsic(name, i32 * lanes, _or_zeros(total, lanes), a, b)
    return _plus(add_pairs(dot2(a, b)), total)


def dot4_signed(a: Value, b: Value, total: Value | None = None) -> Value:
    """`total` + sums of four neighbouring products: i8 × i8 lanes → i32 lanes, a quarter as many.

    `b` never holds -128. On AVX2 the sign of `a` moves to `b`, which has no +128; |a| is at most
    128 as an unsigned byte, so a sum of two is at most 2 × 128 × 127 = 32,512 and fits an int16.
    """
    a, b = a.get(), b.get()
    if a.type.scalar != i8 or b.type.scalar != i8:
        raise TypeError(f"dot4_signed takes i8 lanes, not {a.type} and {b.type}")
    target = current().module.target
    if target.avx2 and a.type.lanes == 32:
        magnitude = intrinsic("llvm.abs.v32i8", u8 * 32, a, as_value(0, bool_))
        signed = intrinsic("llvm.x86.avx2.psign.b", i8 * 32, b, a)
        return dot4(magnitude, signed, total)
    if target.dotprod:
        return _sdot(a, b, total)
    return _plus(add_pairs(add_neighbours(a.to(i16) * b.to(i16))), total)


def dot2_wide(a: Value, b: Value, total: Value) -> Value:
    """`total` + sums of two neighbouring products: i16 × i16 lanes → i32 lanes, half as many."""
    a, b, total = a.get(), b.get(), total.get()
    if a.type.scalar != i16 or b.type != a.type:
        raise TypeError(f"dot2_wide takes i16 lanes, not {a.type} and {b.type}")
    target, lanes = current().module.target, a.type.lanes
    if (target.vnni and lanes == 16) or (target.vnni512 and lanes == 32):
        name = f"llvm.x86.avx512.vpdpwssd.{16 * lanes}"
        return intrinsic(name, i32 * (lanes // 2), total, a, b)
    if target.avx2 and lanes == 16:
        return total + intrinsic("llvm.x86.avx2.pmadd.wd", i32 * 8, a, b)
    if target.avx2 and lanes == 32:
        low = dot2_wide(a.low, b.low, total.low)
        return low.shuffle(list(range(16)), dot2_wide(a.high, b.high, total.high))
    return total + add_neighbours(a.to(i32) * b.to(i32))


def dot8_pairs(a: Value, b: Value, total: Value) -> Value:
    """`total` + the products of two rows of eight i8 with two: [a0·b0, a0·b1, a1·b0, a1·b1]."""
    a, b = a.get(), b.get()
    if a.type != i8 * 16 or b.type != i8 * 16:
        raise TypeError(f"dot8_pairs takes 16 i8 lanes, not {a.type} and {b.type}")
    if current().module.target.i8mm:
        return intrinsic("llvm.aarch64.neon.smmla.v4i32.v16i8", i32 * 4, total, a, b)
    rows, others = [0, 0, 8, 8], [0, 8, 0, 8]
    left = a.shuffle([row + i for row in rows for i in range(8)]).to(i16)
    products = left * b.shuffle([row + i for row in others for i in range(8)]).to(i16)
    return total + add_neighbours(add_neighbours(add_neighbours(products.to(i32))))


def add_pairs(value: Value) -> Value:
    """Sums of two neighbouring i16 lanes, as i32 lanes, half as many."""
    value = value.get()
    if current().module.target.avx2 and value.type.lanes == 16:
        ones = as_value(1, value.type)
        return intrinsic("llvm.x86.avx2.pmadd.wd", i32 * 8, value, ones)
    return add_neighbours(value.to(i32))


def add_neighbours(value: Value, other: Value | None = None) -> Value:
    """Sums of two neighbouring lanes, half as many; those of `other` after them."""
    lanes = value.type.lanes * (1 if other is None else 2)
    even, odd = list(range(0, lanes, 2)), list(range(1, lanes, 2))
    return value.shuffle(even, other) + value.shuffle(odd, other)


def _plus(value: Value, total: Value | None) -> Value:
    return value if total is None else total + value


def _or_zeros(total: Value | None, lanes: int) -> Value:
    return zeros(i32 * lanes) if total is None else total


def _sdot(a: Value, b: Value, total: Value | None) -> Value:
    """The instruction takes 16 lanes: once, or for each 16 of 32 or 64."""
    if a.type.lanes == 16:
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return intrinsic(name, i32 * 4, _or_zeros(total, 4), a, b)
    low, high = (None, None) if total is None else (total.low, total.high)
    halves = _sdot(a.low, b.low, low), _sdot(a.high, b.high, high)
    return halves[0].shuffle(list(range(a.type.lanes // 4)), halves[1])
