"""The number of tokens that a step has is written when nothing of the step before is left to do.

A thread reads it when it enters a call, so it may be late, and see the number of the next step
already. That does no harm where whatever writes the number comes after all other stages: they are
complete by then, and the thread finds no tile that it could compute.
"""

from collections.abc import Iterator

from hotloop.ir.order import Order, Path
from hotloop.ir.program import Call, Item, Program


def count_problems(program: Program, order: Order) -> Iterator[str]:
    """What is wrong with the place where `program.count` is made, one line each."""
    if not program.count:
        return
    maker = _maker(program.body, program.count, (), order)
    if maker is None:
        yield f"count %{program.count}: no call makes it"
        return
    for node in order.nodes:
        if node.index != maker and not order.ordered(node.index, maker):
            where = f"%{node.stage.name} of @{node.call.kernel.name}"
            yield f"count %{program.count}: {where} may still compute rows when it changes"


def _maker(body: tuple[Item, ...], name: str, path: Path, order: Order) -> int | None:
    """The node that computes a name of `body`."""
    for k, item in enumerate(body):
        place = (*path, k)
        if name not in item.defines:
            continue
        if not isinstance(item, Call):
            inner = {outer: inside for inside, outer in item.yields}
            return _maker(item.body, inner[name], place, order)
        result = item.kernel.results[item.results.index(name)]
        for index in order.at[place]:
            ops = (op for part in order.nodes[index].stage.parts for op in part.ops)
            if any(op.result and op.result.name == result for op in ops):
                return index
    return None
