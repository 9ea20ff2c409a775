"""Philox 4×64-10, as `hotloop.ir.sample` has it: random bits from a key and a counter."""

from hotloop.ir.sample import MULTIPLIERS, ROUNDS, WEYL
from hotloop.lang import Type, Value, constant, u64

_U128 = Type("unsigned", 128)


def philox(seed: Value, position: Value) -> Value:
    """The first u64 for the key (seed, 0) and the counter (position, 0, 0, 0)."""
    zero = constant(0, u64)
    c0, c1, c2, c3 = position.to(u64), zero, zero, zero
    k0, k1 = seed.to(u64), zero
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return c0


def _multiply(a: Value, b: int) -> tuple[Value, Value]:
    """The upper and the lower half of the 128-bit product."""
    product = a.to(_U128) * b
    return (product >> 64).to(u64), product.to(u64)
