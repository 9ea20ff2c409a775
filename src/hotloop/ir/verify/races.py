"""Every two accesses to the same memory, one of them a write, are ordered.

Only stages of one iteration need looking at: `hotloop.ir.order` shows why all others are ordered
where every stage has its chain, which is the first rule here. What the tiles of a single stage do
to each other is a rule of the kernel.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hotloop.ir.ops import OPS
from hotloop.ir.order import Node, Order, Path
from hotloop.ir.program import Call, Item, Program, Stage
from hotloop.ir.verify.memory import Buffer, Memory
from hotloop.ir.verify.scopes import call_text


def race_problems(program: Program, order: Order, memories: Mapping[Path, Memory]) -> list[str]:
    """Stages without their chain, and pairs of accesses that nothing orders; one line each."""
    found = [
        f"loop %{loop.index}: {_label(node)} does not wait for its own previous iteration"
        for node, loop in order.unchained()
    ]
    races = _Races(order, memories)
    races.body(program.body, ())
    return list(dict.fromkeys([*found, *races.texts()]))


@dataclass
class _Access:
    """Bit sets of the nodes that touch a buffer, and of those among them that write it."""

    all: int = 0
    writes: int = 0

    def add(self, other: "_Access") -> None:
        self.all |= other.all
        self.writes |= other.writes


Accesses = dict[Buffer, _Access]


def _label(node: Node) -> str:
    return f"%{node.stage.name} of {call_text(node.call)}"


class _Races:
    """Goes through the bodies, inner ones first, and collects the pairs that are not ordered."""

    def __init__(self, order: Order, memories: Mapping[Path, Memory]) -> None:
        self.order = order
        self.memories = memories
        self.pairs: dict[tuple[int, int, str, str], list[str]] = {}
        """(earlier node, later node, what each does) → the buffers."""

    def body(self, items: tuple[Item, ...], path: Path) -> Accesses:
        """Check the pairs in one iteration of a body; give its accesses, by buffers in it."""
        total: Accesses = {}
        for k, item in enumerate(items):
            place = (*path, k)
            if isinstance(item, Call):
                accesses = self.call(item, place)
            else:
                accesses = self.seen_from_outside(self.body(item.body, place), place)
            for buffer, access in accesses.items():
                earlier = total.setdefault(buffer, _Access())
                self.compare(buffer, earlier, access)
                earlier.add(access)
        return total

    def seen_from_outside(self, accesses: Accesses, place: Path) -> Accesses:
        memory, outside = self.memories[place], Accesses()
        for buffer, access in accesses.items():
            for outer in memory.outside(frozenset([buffer])):
                outside.setdefault(outer, _Access()).add(access)
        return outside

    def call(self, call: Call, place: Path) -> Accesses:
        """The accesses of a call, those of its stages compared with each other."""
        memory, kernel = self.memories[place[:-1]], call.kernel
        names = [*(param.name for param in kernel.params), *kernel.results]
        buffers = {
            name: memory.buffers[outside]
            for name, outside in zip(names, call.args + call.results, strict=True)
        }
        accesses: Accesses = {}
        for index, stage in zip(self.order.at[place], kernel.stages, strict=True):
            reads, writes = _touched(stage)
            for name in dict.fromkeys([*reads, *writes]):
                inside = frozenset([((), f"{name} of @{kernel.name}")])
                access = _Access(1 << index, (name in writes) << index)
                for buffer in buffers.get(name, inside):
                    earlier = accesses.setdefault(buffer, _Access())
                    self.compare(buffer, earlier, access)
                    earlier.add(access)
        return accesses

    def compare(self, buffer: Buffer, earlier: _Access, later: _Access) -> None:
        """Note each pair, one of them a write, of which the earlier may not be complete."""
        if not earlier.all or not (earlier.writes or later.writes):
            return
        for node in _bits(later.all):
            writes = later.writes >> node & 1
            conflicting = earlier.all if writes else earlier.writes
            for other in _bits(conflicting & ~(self.order.before[node] | 1 << node)):
                other_writes = earlier.writes >> other & 1
                key = (other, node, _verb(other_writes), _verb(writes))
                self.pairs.setdefault(key, []).append(buffer[1])

    def texts(self) -> Iterator[str]:
        for (a, b, verb, other_verb), buffers in self.pairs.items():
            earlier, later = self.order.nodes[a], self.order.nodes[b]
            names = ", ".join(f"%{name}" for name in dict.fromkeys(buffers))
            ending = f"may still {verb} {'it' if len(set(buffers)) == 1 else 'them'}"
            if earlier.path == later.path:
                kernel = later.call.kernel.name
                who, whom = f"@{kernel} %{later.stage.name}", f"%{earlier.stage.name}"
                names = names.replace(f" of @{kernel}", "")
            else:
                who, whom = _label(later), _label(earlier)
            yield f"{who} {other_verb}s {names} while {whom} {ending}"


def _verb(writes: int) -> str:
    return "write" if writes else "read"


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _touched(stage: Stage) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names that a stage reads and those that it writes, its threads' private ones left out."""
    private = {op.result.name for op in stage.each if op.result}
    reads = dict.fromkeys(name for op in stage.ops for name in op.operands if name not in private)
    writes = {op.operands[i] for op in stage.ops for i in OPS[op.name].writes}
    writes |= {op.result.name for part in stage.parts for op in part.ops if op.result}
    return tuple(reads), frozenset(writes)
