"""fuse: find the layers, and make each one kernel.

Before      %x.0 = embed(…)  %a = rms_norm(%x.0, …)  …  %x.1 = add(…)  %b = rms_norm(%x.1, …)  …
After       %x.0 = call @embed(…)  %x.1 = call @layer(%x.0, …)  %x.2 = call @layer(%x.1, …)  …
Requires    a flat graph, in order
Why         A call per layer costs a launch per layer instead of one per op, and makes the model a
            run of calls of few kernels: what the loop pass looks for.

Nobody says where layers begin. The graph is cut wherever no more than one value crosses: before and
after the blocks (attention, feed-forward) that add to the residual stream. Blocks with the same
skeleton (`hotloop.ir.skeleton`) are one letter, the distance after which most letters come again is
a layer's number of blocks, and the stack goes from the first letter that comes again after it to
the last. So the layers of a stack need not be alike: two kinds are two kernels, and those that
differ only in scalars and formats become one again in the pass `lift`.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from hotloop.ir.graph import Graph, Op
from hotloop.ir.ops import OPS
from hotloop.ir.outline import Group, outline
from hotloop.ir.program import Call, Item, Program
from hotloop.ir.skeleton import op_skeleton
from hotloop.util.remarks import Remark


@dataclass(frozen=True)
class Stack:
    """Blocks start … end, of which `period` make a layer."""

    start: int
    end: int
    period: int


def fuse(graph: Graph) -> tuple[Program, list[Remark]]:
    cuts = _narrow(graph)
    blocks = [graph.ops[start:end] for start, end in pairwise(cuts)]
    stack = find_stack([_letter(graph, block) for block in blocks], [len(b) for b in blocks])
    if stack is None or 2 * (cuts[stack.end] - cuts[stack.start]) < len(graph.ops):
        groups = _split("model", graph.ops)
        text = "no blocks of ops repeat over half of the graph; nothing to loop over"
        return outline(graph, groups), [Remark("fuse", "missed", graph.name, text)]
    bounds = [cuts[block] for block in range(stack.start, stack.end + 1, stack.period)]
    layers: list[Group] = [("layer", graph.ops[start:end]) for start, end in pairwise(bounds)]
    before = _split("prologue", graph.ops[: bounds[0]])
    after = _split("epilogue", graph.ops[bounds[-1] :])
    program = outline(graph, [*before, *layers, *after])
    calls = program.body[len(before) : len(before) + len(layers)]
    return program, [_remark(calls, f"from op {bounds[0]} of {len(graph.ops)}")]


def _narrow(graph: Graph) -> list[int]:
    """Positions between ops where at most one value crosses, and both ends.

    Inputs other than activations (tokens, positions) are everywhere, and do not count.
    """
    made = {value.name: -1 for value in graph.inputs if value.type.format.name == "f32"}
    made |= {op.result.name: i for i, op in enumerate(graph.ops) if op.result}
    last_use = {name: i for i, op in enumerate(graph.ops) for name in op.operands if name in made}
    change = [0] * (len(graph.ops) + 1)
    for name, use in last_use.items():
        change[made[name] + 1] += 1
        change[use + 1] -= 1
    crossing = accumulate(change)
    inner = [cut for cut, n in enumerate(crossing) if n <= 1 and 0 < cut < len(graph.ops)]
    return [0, *inner, len(graph.ops)]


def _letter(graph: Graph, block: Sequence[Op]) -> Hashable:
    return tuple(op_skeleton(op, graph.types) for op in block)


def find_stack(letters: Sequence[Hashable], sizes: Sequence[int]) -> Stack | None:
    """The layers among blocks with the given letters and numbers of ops; None without any.

    Where the part that repeats is no whole number of layers, it grows on the side whose blocks
    have more ops: a block that occurs once is still a block, a final norm is a single op.
    """
    places: dict[Hashable, list[int]] = {}
    for i, letter in enumerate(letters):
        places.setdefault(letter, []).append(i)
    distances = Counter(b - a for found in places.values() for a, b in pairwise(found))
    if not distances:
        return None
    period = max(distances, key=lambda distance: (distances[distance], -distance))
    pairs = [i for i in range(len(letters) - period) if letters[i] == letters[i + period]]
    start, end = pairs[0], pairs[-1] + period + 1
    inside = set(letters[start:end])
    while start > 0 and letters[start - 1] in inside:
        start -= 1
    while end < len(letters) and letters[end] in inside:
        end += 1
    missing = -(end - start) % period
    choices = [
        (start - left, end + missing - left)
        for left in range(missing + 1)
        if start >= left and end + missing - left <= len(letters)
    ]
    if not choices:
        return Stack(start, end - (end - start) % period, period)
    best = max(choices, key=lambda ends: sum(sizes[slice(*ends)]))
    return Stack(*best, period)


def _remark(calls: Sequence[Item], where: str) -> Remark:
    """How many layers there are, of which kinds, in which order."""
    layers = [call.kernel for call in calls if isinstance(call, Call)]
    count, kinds = len(layers), len(set(layers))
    if kinds == 1:
        text = f"{count} layers of {len(layers[0].ops)} ops each, {where}"
    else:
        runs = [(kernel.name, len(list(run))) for kernel, run in groupby(layers)]
        order = ", ".join(f"@{name}" + (f" ×{n}" if n > 1 else "") for name, n in runs)
        text = f"{count} layers of {kinds} kinds, {where}: {order}"
    return Remark("fuse", "did", "layer", text)


def _split(name: str, ops: Sequence[Op]) -> list[Group]:
    """One group, or several where an op must start a kernel."""
    starts = [i for i, op in enumerate(ops) if i == 0 or OPS[op.name].starts_kernel]
    groups: list[Group] = []
    for start, end in pairwise([*starts, len(ops)]):
        first = ops[start]
        single = end - start == 1 or OPS[first.name].starts_kernel
        groups.append((first.name if single else name, ops[start:end]))
    return groups
