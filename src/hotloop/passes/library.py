"""library: the calls of an engine that is written with a library of kernels, as GPUs run it.

Before      %q = linear(%h, %wq)  %k = linear(%h, %wk)  %a = rope(%q)  %b = rope(%k)  …
After       %q, %k = call @linear(%h, %wq, %wk)   %a, %b = call @rope(%q, %k)   …
Requires    a flat graph, in order
Why         What kernel looping is compared with is not an op per launch: libraries join what needs
            no synchronisation. Neighbouring products of one input are one product of a taller
            matrix; neighbouring ops that take their operands row by row are one kernel; an op that
            needs all of its input (a product, attention) starts another. Ten calls for a layer of
            Llama, as TensorRT-LLM makes.
"""

from collections.abc import Sequence
from itertools import groupby

from hotloop.ir.graph import Graph, Op
from hotloop.ir.ops import OPS
from hotloop.ir.outline import Group, outline
from hotloop.ir.program import Program


def library(graph: Graph) -> Program:
    keys = _keys(graph.ops)
    pairs = zip(keys, graph.ops, strict=True)
    groups: list[Group] = []
    for _, members in groupby(pairs, key=lambda pair: pair[0]):
        groups.append(("", [op for _, op in members]))
    return outline(graph, groups)


def _keys(ops: Sequence[Op]) -> list[int]:
    """A number for each op; neighbours with the same one share a kernel."""
    keys: list[int] = []
    for before, op in zip((None, *ops), ops, strict=False):
        joins = before is not None and not OPS[op.name].starts_kernel and _join(before, op)
        keys.append(keys[-1] if joins else len(keys))
    return keys


def _join(before: Op, op: Op) -> bool:
    if by_rows(before) or by_rows(op):
        return by_rows(before) and by_rows(op)
    return before.name == op.name and before.operands[0] == op.operands[0]


def by_rows(op: Op) -> bool:
    """Whether a tile of the op needs the same rows of its input only."""
    return bool(OPS[op.name].aligned)
