"""The ops: signature, meaning in NumPy, and how each may be cut into tiles.

T is the number of tokens of a step. They follow each other in one sequence, and `pos` i32[1] is the
position of the first, so row t is at position pos + t; or each belongs to a sequence of its own,
and `pos` i32[T] has the position of each. Meanings compute in float32 and are the oracle of the
compiled kernels.

An op's result is computed in *tiles* of rows. What a row is, and which part of each operand a tile
needs, is what the pipeline pass asks before it lets two ops share a stage:

- `features`: a row is an element of the last dimension, for all T tokens (linear, add, …);
- `heads`: a row is one (key-value head, token) pair (attention);
- `shares`: a row is an equal share of the work that the position asks for (attend);
- `tokens`: a row is one token's whole vector (norms, quantise, gather, embed);
- `one`: the op is a single tile (sampling).
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from hotloop.ir.ops import (
    attention,
    cache,
    elementwise,
    embed,
    experts,
    gather,
    heads,
    linear,
    norm,
    rope,
    sampling,
    speculation,
)
from hotloop.ir.ops.attention import SHARES
from hotloop.ir.ops.base import GROUP, Array, Attrs, OpDef, OpTypeError
from hotloop.ir.ops.cache import CHUNK, cache_type, chunk_count
from hotloop.ir.types import TensorType

__all__ = [
    "CHUNK",
    "GROUP",
    "OPS",
    "Array",
    "OpTypeError",
    "cache_type",
    "chunk_count",
    "infer",
    "row_count",
]

_MODULES = (
    embed,
    norm,
    linear,
    rope,
    cache,
    attention,
    elementwise,
    experts,
    gather,
    heads,
    sampling,
    speculation,
)

OPS: Mapping[str, OpDef] = MappingProxyType(
    {op.name: op for module in _MODULES for op in module.OPS}
)


def infer(
    name: str, operands: Sequence[TensorType], attrs: Attrs, scalars: Collection[str] = ()
) -> TensorType | None:
    """The result type of an op; raises `OpTypeError` with the reason where there is none.

    `scalars` are the attributes that are numbers in memory, which no type depends on.
    """
    if name not in OPS:
        raise OpTypeError(f"there is no op {name}; known: {', '.join(OPS)}")
    op = OPS[name]
    if {*attrs, *scalars} != set(op.attrs):
        raise OpTypeError(f"{name} takes the attributes {op.attrs}, not {(*attrs, *scalars)}")
    for scalar in scalars:
        if scalar not in op.scalars:
            raise OpTypeError(f"{name}: {scalar} is a number in the code, not a parameter")
    try:
        return op.infer(operands, attrs)
    except OpTypeError as error:
        raise OpTypeError(f"{name}: {error}") from None
    except (ValueError, IndexError) as error:
        raise OpTypeError(f"{name}: wrong operands ({error})") from None


def row_count(name: str, operands: Sequence[TensorType], result: TensorType | None) -> int:
    """How many rows the whole op has, in the unit that its `rows` names."""
    kind = OPS[name].rows
    if kind == "one":
        return 1
    shape = (result or operands[1]).shape
    if kind == "heads":
        return operands[1].shape[1] * shape[0]
    if kind == "shares":
        return min(SHARES, shape[0] * operands[1].shape[1] * operands[4].shape[1])
    return shape[0] if kind == "tokens" else shape[1]
