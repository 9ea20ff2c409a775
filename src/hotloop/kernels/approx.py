"""exp and log of the kernel language: step by step those of `hotloop.ir.approx`, bit for bit.

tanh and erf are made of the same steps; nothing samples with them, so their meaning is NumPy's own.
"""

from hotloop.ir.approx import (
    EXP_COEFFICIENTS,
    EXP_RANGE,
    LN2,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    LOG_COEFFICIENTS,
    ROUND,
)
from hotloop.lang import (
    Value,
    absolute,
    as_value,
    constant,
    f32,
    f64,
    i64,
    maximum,
    minimum,
    select,
    u32,
)

TANH_LIMIT, ERF_LIMIT = 10.0, 4.0
"""From here on, tanh and erf round to 1."""
#: Abramowitz and Stegun's p, and a₁ … a₅, lowest power first.
ERF_RATE = 0.3275911
ERF_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)

_MANTISSA = (1 << 52) - 1
_HALF_BITS = 0x3FE << 52


def exp(x: Value) -> Value:
    """e^x for lanes of float32: relative error below 1.5e-7 between -87 and 88.

    0 below -87.68, infinity above 88.37, NaN for NaN. Where the exponent is out of range its
    field is all zeros or all ones, that is 0 or infinity: no case needs a branch.
    """
    x = maximum(constant(EXP_RANGE[0], x.type), x)
    x = minimum(constant(EXP_RANGE[1], x.type), x)
    beyond_one, power = _reduced_exp(x)
    return (beyond_one + 1.0) * power


def tanh(x: Value) -> Value:
    """Relative error below 4e-7, also where x is small; ±1 beyond 10, NaN for NaN.

    tanh x = e / (e + 2) with e = exp(2x) - 1, of which the part of a power of two is taken off
    before it is rounded away.
    """
    size = minimum(constant(TANH_LIMIT, x.type), absolute(x))  # in this order NaN stays NaN
    beyond_one, power = _reduced_exp(size + size)
    e = beyond_one * power + (power - 1.0)
    return _with_sign(e / (e + 2.0), x)


def erf(x: Value) -> Value:
    """Absolute error below 6e-7 (Abramowitz and Stegun, 7.1.26); ±1 beyond 4, NaN for NaN."""
    size = minimum(constant(ERF_LIMIT, x.type), absolute(x))
    t = 1.0 / (size * ERF_RATE + 1.0)
    rest = _horner(ERF_COEFFICIENTS, t) * t * exp(0.0 - size * size)
    return _with_sign(1.0 - rest, x)


def _reduced_exp(x: Value) -> tuple[Value, Value]:
    """(e^r - 1, 2^n) with x = r + n ln 2 and |r| ≤ ln 2 / 2."""
    shifted = x * LOG2_E + ROUND
    n = shifted - ROUND
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    exponent = (shifted.bitcast(u32 * x.type.lanes) << 23) + 0x3F800000
    return _horner(EXP_COEFFICIENTS, r) * (r * r) + r, exponent.bitcast(f32 * x.type.lanes)


def _with_sign(size: Value, x: Value) -> Value:
    """The number `size`, which is not negative, with the sign of `x`."""
    unsigned = u32 * x.type.lanes
    sign = x.bitcast(unsigned) & 0x80000000
    return (size.bitcast(unsigned) | sign).bitcast(f32 * x.type.lanes)


def log(x: Value) -> Value:
    """ln x for a positive, finite scalar float32."""
    bits = x.to(f64).bitcast(i64)
    mantissa = ((bits & _MANTISSA) | _HALF_BITS).bitcast(f64)
    exponent = (bits >> 52) - 1022
    low = mantissa < 0.5**0.5
    mantissa = select(low, mantissa * 2.0, mantissa)
    exponent = select(low, exponent - 1, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return (2.0 * s * _horner(LOG_COEFFICIENTS, s * s) + exponent.to(f64) * LN2).to(f32)


def _horner(coefficients: tuple[float, ...], x: Value) -> Value:
    total = as_value(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
