"""Happens-before: what is said of all iterations at once is true of every one of them.

The oracle writes a program out. Then there are no loops, only calls one after another, and what a
stage waits for is plain: the stages it names, and the exits of the call before.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import toys
from random_programs import random_program

from hotloop.ir.order import Order
from hotloop.ir.parse import parse_program
from hotloop.ir.program import ENTRY, Call, Item, Loop, Program

Path = tuple[int, ...]
TRIP = 3


@dataclass(frozen=True)
class Instance:
    """A call in one iteration of the loops around it: their paths and iteration numbers."""

    path: Path
    call: Call
    iterations: tuple[tuple[Path, int], ...]


def written_out(body: tuple[Item, ...], path: Path = (), around: tuple = ()) -> Iterator[Instance]:
    for k, item in enumerate(body):
        place = (*path, k)
        if isinstance(item, Loop):
            for i in range(TRIP):
                yield from written_out(item.body, place, (*around, (place, i)))
        else:
            yield Instance(place, item, around)


class Oracle:
    """For each node of `order`, its instances; for each instance, a bit set of those before it."""

    def __init__(self, program: Program, order: Order) -> None:
        self.iterations: list[dict[Path, int]] = []
        self.before: list[int] = []
        self.instances: defaultdict[int, list[int]] = defaultdict(list)
        exits: list[int] = []
        launch, launched = 0, 0
        for instance in written_out(program.body):
            if program.launch == "item" and instance.path[0] != launch:
                launch, launched = instance.path[0], (1 << len(self.before)) - 1
            numbers: dict[str, int] = {}
            for node, stage in zip(
                order.at[instance.path], instance.call.kernel.stages, strict=True
            ):
                waits = list(numbers.values()) if stage.barrier else []
                waits += [numbers[name] for name in stage.after if name != ENTRY]
                if stage.barrier or ENTRY in stage.after:
                    waits += exits
                reached = launched
                for other in waits:
                    reached |= self.before[other] | 1 << other
                numbers[stage.name] = len(self.before)
                self.instances[node].append(len(self.before))
                self.iterations.append(dict(instance.iterations))
                self.before.append(reached)
            exits = [numbers[name] for name in instance.call.kernel.exits]

    def ordered(self, a: int, b: int, common: list[Path], loop: Path | None) -> bool:
        """Whether every instance of `a` precedes every one of `b`: those in the same iteration of
        the `common` loops, or those an iteration of `loop` later, the loops around it the same."""
        for x in self.instances[a]:
            for y in self.instances[b]:
                at, later = self.iterations[x], self.iterations[y]
                if loop is None:
                    concerned = all(at[path] == later[path] for path in common)
                else:
                    outer = [path for path in common if len(path) < len(loop)]
                    concerned = all(at[path] == later[path] for path in outer)
                    concerned = concerned and later[loop] > at[loop]
                if concerned and not self.before[y] >> x & 1:
                    return False
        return True


def _common(order: Order, a: int, b: int) -> list[Path]:
    """The loops around both nodes."""
    paths = [order.nodes[a].path, order.nodes[b].path]
    return [loop for loop in order.loops if all(path[: len(loop)] == loop for path in paths)]


def _check(program: Program) -> bool:
    """Compare all pairs; whether the program's stages have their chains."""
    order = Order(program)
    oracle = Oracle(program, order)
    nodes = range(len(order.nodes))
    chained = all(
        oracle.ordered(a, a, _common(order, a, a), loop)
        for a in nodes
        for loop in _common(order, a, a)
    )
    assert chained == (order.unchained() == [])
    if not chained:
        return False
    for a in nodes:
        for b in nodes:
            common = _common(order, a, b)
            assert order.ordered(a, b) == (a != b and oracle.ordered(a, b, common, None))
            for loop in common:
                assert order.ordered(a, b, loop)
                assert oracle.ordered(a, b, common, loop)
    return True


@pytest.mark.parametrize("name", toys.VALID)
def test_every_toy_is_ordered_as_its_written_out_form(name: str) -> None:
    if name not in ("ops", "fused", "looped"):  # as long as they are dull
        assert _check(toys.program(name))


def test_random_programs_are_ordered_as_their_written_out_form() -> None:
    small = (random_program(seed) for seed in range(400))
    checked = [_check(program) for program in small if _instances(program.body) <= 60]
    assert len(checked) > 100
    assert 50 < sum(checked) < len(checked)  # of both kinds


def _instances(body: tuple[Item, ...]) -> int:
    return sum(
        TRIP * _instances(item.body) if isinstance(item, Loop) else len(item.kernel.stages)
        for item in body
    )


# Single rules ------------------------------------------------------------------------------------


def _order(source: str) -> tuple[Order, dict[str, int]]:
    """The order, and the number of each node by `kernel.stage`."""
    order = Order(parse_program(source))
    numbers = {f"{node.call.kernel.name}.{node.stage.name}": node.index for node in order.nodes}
    return order, numbers


def test_two_carried_edges_say_nothing_about_the_next_iteration() -> None:
    # s1 waits for nothing, so nothing of the iteration before is known to be complete.
    order, at = _order(toys.SMALL.replace("stage %s1 after %s0", "stage %s1"))
    a, b, loop = at["k.s0"], at["k.s1"], (0,)
    assert not order.ordered(a, b)
    assert not order.ordered(b, b, loop)
    assert not order.ordered(a, b, loop)
    assert order.ordered(b, a, loop)  # s1 is an exit, and s0 waits for the entry
    assert [node.stage.name for node, _ in order.unchained()] == ["s1"]


def test_within_an_iteration_and_across() -> None:
    order, at = _order(toys.SMALL)
    a, b, loop = at["k.s0"], at["k.s1"], (0,)
    assert order.ordered(a, b)
    assert not order.ordered(b, a)
    assert not order.ordered(a, a)
    for x in (a, b):
        for y in (a, b):
            assert order.ordered(x, y, loop)


def test_stages_that_nothing_orders_are_ordered_across_iterations() -> None:
    order, at = _order(toys.PROMPT)
    assert not order.ordered(at["k.s1"], at["k.s2"])
    assert not order.ordered(at["k.s2"], at["k.s1"])
    one, other = 1, 2  # the two of the first call; 3, 4 and 5 are those of the second
    assert all(order.ordered(x, y) for x in (0, one, other) for y in (3, 4, 5))


def test_what_leaves_an_inner_loop_waits_for_its_last_iteration() -> None:
    order, at = _order(toys.PERIOD)
    local, last = at["local.s0"], at["global.s0"]
    assert order.ordered(local, last)
    assert not order.ordered(last, local)
    assert order.ordered(last, local, (0,))
    assert order.ordered(local, local, (0, 0))


def test_launches_order_stages_that_wait_for_nothing() -> None:
    order, _ = _order(toys.LAUNCHES)
    assert all(order.ordered(x, y) for x in (0, 1) for y in (2, 3))
    order, _ = _order(toys.LAUNCHES.replace("launch=item", "launch=program"))
    assert not order.ordered(0, 3)
    assert order.ordered(0, 2)
