"""Rules of a list of ops: operands exist, types fit, only what may be written is written."""

from collections.abc import Container, Iterable, Mapping

from hotloop.ir.graph import Op
from hotloop.ir.ops import OPS, OpTypeError, infer
from hotloop.ir.types import TensorType, tensor


def op_problems(
    op: Op, types: Mapping[str, TensorType], writable: Container[str], what: str
) -> Iterable[str]:
    """`types` are those defined so far; `what` names the things that `writable` holds."""
    missing = [name for name in op.reads if name not in types]
    if missing:
        yield f"{op.name} reads %{missing[0]}, which nothing defines before it"
        return
    written = OPS[op.name].writes if op.name in OPS else ()
    for i in written:
        if i < len(op.operands) and op.operands[i] not in writable:
            yield f"{op.name} writes %{op.operands[i]} in place, which is not {what}"
    try:
        scalars = dict(op.scalars)
        result = infer(op.name, [types[name] for name in op.operands], dict(op.attrs), scalars)
    except OpTypeError as error:
        yield str(error)
        return
    for attr, name in op.scalars:
        expected = tensor(OPS[op.name].scalars[attr])
        if types[name] != expected:
            yield f"{op.name}: {attr} is %{name}, {types[name]}, expected {expected}"
    if op.result is None and result is not None:
        yield f"{op.name} gives {result}, but the result has no name"
    elif op.result is not None and result is None:
        yield f"{op.name} gives no result, but %{op.result.name} is to be one"
    elif op.result is not None and op.result.type != result:
        yield f"{op.name} gives {result}, but %{op.result.name} is declared {op.result.type}"
