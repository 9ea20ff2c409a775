"""exp and log of the kernel language: step by step those of `hotloop.ir.approx`, bit for bit."""

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
from hotloop.lang import Value, as_value, constant, f32, f64, i64, maximum, minimum, select, u32

_MANTISSA = (1 << 52) - 1
_HALF_BITS = 0x3FE << 52


def exp(x: Value) -> Value:
    """e^x for lanes of float32: relative error below 1.5e-7 between -87 and 88.

    0 below -87.68, infinity above 88.37, NaN for NaN. Where the exponent is out of range its
    field is all zeros or all ones, that is 0 or infinity: no case needs a branch.
    """
    x = maximum(constant(EXP_RANGE[0], x.type), x)
    x = minimum(constant(EXP_RANGE[1], x.type), x)
    shifted = x * LOG2_E + ROUND
    n = shifted - ROUND
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    mantissa = (_horner(EXP_COEFFICIENTS, r) * (r * r) + r) + 1.0
    exponent = (shifted.bitcast(u32 * x.type.lanes) << 23) + 0x3F800000
    return mantissa * exponent.bitcast(f32 * x.type.lanes)


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
