"""exp and log by steps that every machine rounds alike: the meaning of the kernels' own.

Each step is one IEEE 754 addition, subtraction, multiplication or division, with nothing fused, so
`hotloop.kernels.approx`, which takes the same steps, gives the same bits as NumPy. That is what
lets seed → tokens be one function, whatever runs it.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

EXP_RANGE = (-88.0, 89.0)
"""exp clamps its argument to these: below -87.68 it gives 0, above 88.37 infinity."""

LOG2_E = 1.4426950408889634
#: ln 2 in two parts; the first has nine bits, so that n times it is exact for every exponent n.
LN2_HIGH, LN2_LOW = 0.693359375, -2.1219444005469057e-4
LN2 = 0.6931471805599453

ROUND = 1.5 * 2**23
"""Added to a float32 of magnitude under 2^22, it rounds to an integer, held in the low bits."""

#: (e^r - 1 - r) / r² for |r| ≤ ln 2 / 2, lowest power first; minimax in the relative error of e^r
#: (Remez exchange; 3.1e-9 before the coefficients are rounded).
EXP_COEFFICIENTS = (0.49999994, 0.1666652, 0.041668396, 0.008368797, 0.0013814433)

#: ln((1 + s) / (1 - s)) / 2s in powers of s²: 1 + s²/3 + s⁴/5 + …
LOG_COEFFICIENTS = tuple(1 / (2 * k + 1) for k in range(8))


def exp(x: Array) -> Array:
    """e^x for float32: within 1.5e-7 of it, relatively, between -87 and 88; NaN for NaN."""
    x = np.where(x > np.float32(EXP_RANGE[0]), x, np.where(np.isnan(x), x, EXP_RANGE[0]))
    x = np.where(x < np.float32(EXP_RANGE[1]), x, np.where(np.isnan(x), x, EXP_RANGE[1]))
    x = x.astype(np.float32)
    shifted = x * np.float32(LOG2_E) + np.float32(ROUND)
    n = shifted - np.float32(ROUND)
    r = (x - n * np.float32(LN2_HIGH)) - n * np.float32(LN2_LOW)
    q = np.float32(EXP_COEFFICIENTS[-1])
    for c in reversed(EXP_COEFFICIENTS[:-1]):
        q = q * r + np.float32(c)
    mantissa = (q * (r * r) + r) + np.float32(1)
    exponent = (shifted.view(np.uint32) << np.uint32(23)) + np.uint32(0x3F800000)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(mantissa * exponent.view(np.float32))


def log(x: float) -> np.float32:
    """ln x for a positive, finite float32, computed in float64 and rounded."""
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = mantissa * 2, exponent - 1
    s = (mantissa - 1) / (mantissa + 1)
    p = LOG_COEFFICIENTS[-1]
    for c in reversed(LOG_COEFFICIENTS[:-1]):
        p = p * (s * s) + c
    return np.float32(2 * s * p + exponent * LN2)
