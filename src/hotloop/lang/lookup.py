"""Look-ups in a table of 16 bytes, one for each lane: a byte shuffle where the target has one."""

from hotloop.lang.math import intrinsic, select
from hotloop.lang.trace import current
from hotloop.lang.types import Type
from hotloop.lang.values import Value, constant, vector


def lookup(table: tuple[int, ...], index: Value, type: Type) -> Value:
    """`table[index]`, one of 16 numbers, as i8 or u8 (`type`), for u8 lanes of 0 to 15."""
    index = index.get()
    lanes = index.type.lanes
    target = current().module.target
    if target.avx2 and lanes in (32, 64) and (lanes == 32 or target.vnni512):
        name = "llvm.x86.avx2.pshuf.b" if lanes == 32 else "llvm.x86.avx512.pshuf.b.512"
        return intrinsic(name, type * lanes, vector(table * (lanes // 16), type), index)
    if target.triple.startswith("aarch64") and lanes >= 16:
        return _tbl(vector(table, type), index, type)
    found = constant(table[0], type * lanes)
    for place, number in enumerate(table[1:], 1):
        found = select(index >= place, constant(number, type * lanes), found)
    return found


def _tbl(table: Value, index: Value, type: Type) -> Value:
    """AArch64's instruction takes 16 lanes: once, or for each half of more."""
    lanes = index.type.lanes
    if lanes == 16:
        return intrinsic("llvm.aarch64.neon.tbl1.v16i8", type * 16, table, index)
    low, high = _tbl(table, index.low, type), _tbl(table, index.high, type)
    return low.shuffle(list(range(lanes)), high)
