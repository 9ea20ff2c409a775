"""lift: kernels that differ only in scalars and in formats of weights become one.

Before      %a = call @layer(%x, %w.0)     rms_norm … {eps=1e-05}, linear with %w : q4_0[64,64]
            %b = call @layer.2(%a, %w.1)   rms_norm … {eps=0.001}, linear with %w : q8_0[64,64]
After       constant %layer.eps.0 : f32[] = 1e-05   constant %layer.eps.1 : f32[] = 0.001
            %a = call @layer(%x, %w.0, %layer.eps.0)   with %w : q4_0|q8_0[64,64], %eps : f32[]
            %b = call @layer(%a, %w.1, %layer.eps.1)
Requires    interned kernels with one op in each stage (fuse)
Why         A run of calls of one kernel is a loop, whatever is stacked in it: a window size per
            layer, the format that the file has chosen for a layer's weight. Only what differs is
            lifted; a number that all layers share stays in the code, where it costs nothing.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hotloop.ir.graph import Attr, Op, Value
from hotloop.ir.ops import OPS
from hotloop.ir.program import Call, Constant, Item, Kernel, Program
from hotloop.ir.skeleton import op_skeleton
from hotloop.ir.types import TensorType, tensor, variant
from hotloop.util.remarks import Remark


@dataclass(frozen=True)
class _Scalar:
    """An attribute that differs: where it stands in each kernel, and its number in each."""

    places: tuple[tuple[int, str], ...]
    """(index of the op, attribute): several where they are always equal."""
    param: Value
    numbers: tuple[Attr, ...]


def lift(program: Program) -> tuple[Program, list[Remark]]:
    families: dict[Hashable, list[Kernel]] = {}
    for kernel in program.kernels:
        families.setdefault(_skeleton(kernel), []).append(kernel)
    remarks: list[Remark] = []
    merged: dict[Kernel, tuple[Kernel, tuple[Attr, ...]]] = {}
    for kernels in families.values():
        if len(kernels) > 1:
            scalars = _differing(kernels)
            made = _merge(kernels, scalars)
            for k, kernel in enumerate(kernels):
                merged[kernel] = made, tuple(scalar.numbers[k] for scalar in scalars)
            remarks.append(_remark(kernels, made, scalars))
    if merged:
        constants: list[Constant] = []
        body = tuple(_replaced(item, merged, constants) for item in program.body)
        program = replace(program, body=body, constants=tuple(constants))
    return program, remarks + _kept_apart(program)


def _skeleton(kernel: Kernel) -> Hashable:
    """Everything that one kernel cannot choose by its arguments."""
    number = {param.name: i for i, param in enumerate(kernel.params)}
    lines: list[Hashable] = []
    for stage in kernel.stages:
        lines.append((stage.after, stage.barrier, tuple(part.tile for part in stage.parts)))
        for op in stage.ops:
            if op.result:
                number[op.result.name] = len(number)
            operands = tuple(number[name] for name in op.operands)
            lines.append((op_skeleton(op, kernel.types), operands))
    return (*lines, tuple(number[name] for name in kernel.results))


def _differing(kernels: Sequence[Kernel]) -> list[_Scalar]:
    """The attributes that differ between the kernels; those that do so alike share a scalar."""
    found: dict[tuple[str, str, tuple[Attr, ...]], list[tuple[int, str]]] = {}
    for i, op in enumerate(kernels[0].ops):
        for name, format in OPS[op.name].scalars.items():
            numbers = tuple(kernel.ops[i].attr(name) for kernel in kernels)
            if len(set(numbers)) > 1:
                found.setdefault((name, format, numbers), []).append((i, name))
    taken = set(kernels[0].types)
    scalars = []
    for (name, format, numbers), places in found.items():
        free = next(n for n in _candidates(name) if n not in taken)
        taken.add(free)
        scalars.append(_Scalar(tuple(places), Value(free, tensor(format)), numbers))
    return scalars


def _candidates(name: str) -> Iterator[str]:
    yield name
    n = 2
    while True:
        yield f"{name}.{n}"
        n += 1


def _merge(kernels: Sequence[Kernel], scalars: Sequence[_Scalar]) -> Kernel:
    """The first kernel, with the scalars as parameters and variants where formats differ."""
    first = kernels[0]
    types = zip(*(tuple(param.type for param in kernel.params) for kernel in kernels), strict=True)
    params = [
        Value(param.name, _one_of(found)) for param, found in zip(first.params, types, strict=True)
    ]
    names = {place: scalar.param.name for scalar in scalars for place in scalar.places}
    number = {id(op): i for i, op in enumerate(first.ops)}

    def change(op: Op) -> Op:
        lifted = {a: names[number[id(op)], a] for a, _ in op.attrs if (number[id(op)], a) in names}
        attrs = tuple(pair for pair in op.attrs if pair[0] not in lifted)
        return replace(op, attrs=attrs, scalars=tuple(lifted.items()))

    stages = tuple(
        replace(
            stage,
            parts=tuple(replace(part, ops=tuple(map(change, part.ops))) for part in stage.parts),
        )
        for stage in first.stages
    )
    params += [scalar.param for scalar in scalars]
    return Kernel.of(first.name, tuple(params), first.results, stages)


def _one_of(types: Sequence[TensorType]) -> TensorType:
    if len(set(types)) == 1:
        return types[0]
    return TensorType(variant(type.format for type in types), types[0].shape)


def _replaced(
    item: Item,
    merged: dict[Kernel, tuple[Kernel, tuple[Attr, ...]]],
    constants: list[Constant],
) -> Item:
    """The call with the merged kernel, and a constant of its own for each scalar."""
    if not isinstance(item, Call) or item.kernel not in merged:
        return item
    kernel, numbers = merged[item.kernel]
    own = []
    for param, number in zip(kernel.params[len(item.args) :], numbers, strict=True):
        assert not isinstance(number, str)
        prefix = f"{kernel.name}.{param.name}."
        n = sum(constant.value.name.startswith(prefix) for constant in constants)
        own.append(Constant(Value(f"{prefix}{n}", param.type), number))
    constants += own
    return Call(kernel, (*item.args, *(constant.value.name for constant in own)), item.results)


def _kept_apart(program: Program) -> list[Remark]:
    """What keeps neighbouring layers of two kinds from being one: the first op that differs."""
    found: dict[tuple[Kernel, Kernel], Remark] = {}
    for a, b in pairwise(program.body):
        if isinstance(a, Call) and isinstance(b, Call) and _are_layers(a, b):
            pair = (a.kernel, b.kernel)
            if pair not in found and pair[::-1] not in found:
                text = f"is another kernel than @{a.kernel.name}: {_difference(*pair)}"
                found[pair] = Remark("lift", "missed", f"@{b.kernel.name}", text)
    return list(found.values())


def _are_layers(a: Call, b: Call) -> bool:
    """Whether one call hands on to another, of another kernel, what it could have been handed."""
    types = [[call.kernel.types[name] for name in call.kernel.results] for call in (a, b)]
    first = a.kernel.params[0].type
    handed = set(a.results) & set(b.args)
    return bool(handed) and a.kernel is not b.kernel and types[0] == types[1] == [first]


def _difference(a: Kernel, b: Kernel) -> str:
    for i, (one, other) in enumerate(zip(a.ops, b.ops, strict=False)):
        if one.name != other.name:
            return f"op {i} is {other.name}, not {one.name}"
        for (name, value), (_, wanted) in zip(other.attrs, one.attrs, strict=False):
            if value != wanted and name not in OPS[one.name].scalars:
                return f"{name} of op {i}, {one.name}, is {value}, not {wanted}"
        if op_skeleton(one, a.types) != op_skeleton(other, b.types):
            return f"op {i}, {one.name}, has other types"
    if len(a.ops) != len(b.ops):
        return f"it has {len(b.ops)} ops, not {len(a.ops)}"
    return "its ops are the same, but not what they work on"


def _remark(kernels: Sequence[Kernel], made: Kernel, scalars: Sequence[_Scalar]) -> Remark:
    others = ", ".join(f"@{kernel.name}" for kernel in kernels[1:])
    parts = []
    for scalar in scalars:
        numbers = " or ".join(map(str, dict.fromkeys(scalar.numbers)))
        parts.append(f"%{scalar.param.name} is {numbers}")
    for param in made.params:
        if param.type.format.variants:
            formats = " or ".join(format.name for format in param.type.format.variants)
            parts.append(f"%{param.name} is in {formats}")
    text = f"takes the place of {others}: {'; '.join(parts)}"
    return Remark("lift", "did", f"@{made.name}", text)
