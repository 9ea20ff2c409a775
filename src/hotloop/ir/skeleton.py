"""What is the same in layers that one kernel can compute: everything but names, scalars, formats.

An attribute that `OpDef.scalars` names may be a number in memory, and a weight that
`OpDef.variants` names may be in any format. Ops with the same skeleton differ in these only.
"""

from collections.abc import Hashable, Mapping

from hotloop.ir.graph import Op
from hotloop.ir.ops import OPS
from hotloop.ir.types import TensorType


def op_skeleton(op: Op, types: Mapping[str, TensorType]) -> Hashable:
    """The op without its operands' names, its liftable attributes and its variants' formats."""
    definition = OPS[op.name]
    attrs = tuple(pair for pair in op.attrs if pair[0] not in definition.scalars)
    operands = tuple(
        types[name].shape if i in definition.variants else types[name]
        for i, name in enumerate(op.operands)
    )
    return op.name, attrs, operands, op.result and op.result.type
