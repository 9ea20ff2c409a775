"""Outlining: cut a graph's ops into kernels and calls. What `lower` and `fuse` share.

A kernel's params are the outside names its ops use, in order of first use; its results are the
values that ops outside, the outputs, or the feedback use. Groups with the same structure share one
kernel, named after the first of them.
"""

import re
from collections.abc import Iterator, Sequence

from hotloop.ir.graph import Graph, Op, Value
from hotloop.ir.ops import OPS
from hotloop.ir.program import ENTRY, Call, Kernel, Part, Program, Stage

Group = tuple[str, Sequence[Op]]
"""The kernel's name ("" takes the op's), and its ops."""


def outline(graph: Graph, groups: Sequence[Group]) -> Program:
    """The program that calls one kernel for each group of consecutive ops."""
    used_in: dict[str, set[int]] = {}
    for i, (_, ops) in enumerate(groups):
        for op in ops:
            for name in op.operands:
                used_in.setdefault(name, set()).add(i)
    leaving = {*graph.outputs, *(source for source, _ in graph.feedback)}
    kernels: dict[tuple[object, ...], Kernel] = {}
    names: set[str] = set()
    body = []
    for i, (name, ops) in enumerate(groups):
        defined = [op.result.name for op in ops if op.result]
        args = tuple(dict.fromkeys(n for op in ops for n in op.operands if n not in defined))
        results = tuple(n for n in defined if used_in.get(n, set()) - {i} or n in leaving)
        structure = _structure(graph, ops, args, results)
        if structure not in kernels:
            unique = next(n for n in _candidates(name or ops[0].name) if n not in names)
            names.add(unique)
            kernels[structure] = _kernel(graph, unique, ops, args, results)
        body.append(Call(kernels[structure], args, results))
    return Program(
        graph.name,
        graph.inputs,
        graph.weights,
        graph.states,
        tuple(body),
        graph.outputs,
        graph.feedback,
        graph.until,
        count=graph.count,
    )


def _candidates(name: str) -> Iterator[str]:
    yield name
    n = 2
    while True:
        yield f"{name}.{n}"
        n += 1


def _structure(
    graph: Graph, ops: Sequence[Op], args: Sequence[str], results: Sequence[str]
) -> tuple[object, ...]:
    """What makes two groups the same kernel: everything but names."""
    number = {name: i for i, name in enumerate(args)}
    lines: list[object] = [graph.types[name] for name in args]
    for op in ops:
        if op.result:
            number[op.result.name] = len(number)
        result_type = op.result.type if op.result else None
        lines.append((op.name, op.attrs, tuple(number[n] for n in op.operands), result_type))
    return (*lines, tuple(number[name] for name in results))


def _kernel(
    graph: Graph, name: str, ops: Sequence[Op], args: Sequence[str], results: Sequence[str]
) -> Kernel:
    """One stage for each op, with a barrier between stages."""
    short: dict[str, str] = {}
    for full in (*args, *(op.result.name for op in ops if op.result)):
        short[full] = next(n for n in _candidates(local_name(full)) if n not in short.values())
    stages = []
    for i, op in enumerate(ops):
        result = Value(short[op.result.name], op.result.type) if op.result else None
        local = Op(op.name, tuple(short[n] for n in op.operands), result, op.attrs)
        part = Part((local,), OPS[op.name].grain(dict(op.attrs)))
        after = (ENTRY,) if i == 0 else ()
        stages.append(Stage(f"s{i}", after, (), (part,), barrier=i > 0))
    params = tuple(Value(short[n], graph.types[n]) for n in args)
    return Kernel.of(name, params, tuple(short[n] for n in results), tuple(stages))


def local_name(name: str) -> str:
    """A name without its layer: `blk.7.attn_q.weight` → `attn_q.weight`."""
    return re.sub(r"^.*?\.\d+\.(?=\D)", "", name)
