"""Which names may be the same memory.

A *buffer* is a piece of memory of its own: that of an input, weight or state; of a call's result
at its place in the program; of a value inside a kernel. Each name of a body stands for one of a
set of buffers. Inside a loop, what differs from iteration to iteration is a buffer that exists in
that loop only, and `lift` says what it may be outside:

    invariant   the buffer outside
    stacked     one buffer inside; outside, one of several (likewise a state with several names)
    carried     its value starts in the buffer of the initial one, which the loop overwrites.
                One buffer: this value and the next are both in it. Two: inside they are two
                buffers; outside, each may be either of the initial one and one of the loop's own.

A program's output that is fed back to an input has the input's buffer, so that the next step finds
it there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotloop.ir.order import Path
from hotloop.ir.program import Call, Item, Loop, Program

Buffer = tuple[Path, str]
"""The path of the loop it belongs to, and a name that is unique there."""
Buffers = frozenset[Buffer]


@dataclass
class Memory:
    """The buffers of the names in one body."""

    path: Path
    buffers: dict[str, Buffers] = field(default_factory=dict)
    lift: dict[Buffer, Buffers] = field(default_factory=dict)
    """What a buffer of this loop's own may be outside; others are the same outside."""

    def own(self, name: str) -> Buffers:
        return frozenset([(self.path, name)])

    def outside(self, buffers: Buffers) -> Buffers:
        return frozenset(outer for inner in buffers for outer in self.lift.get(inner, {inner}))


def memories(program: Program) -> dict[Path, Memory]:
    """The memory of every body, by the path of its loop; () for the program's own."""
    found: dict[Path, Memory] = {}
    memory = Memory(())
    for value in program.declared():
        memory.buffers[value.name] = memory.own(value.name)
    fixed = {source: memory.buffers[target] for source, target in program.feedback}
    _body(program.body, memory, fixed, found)
    return found


def _body(
    body: tuple[Item, ...],
    memory: Memory,
    fixed: Mapping[str, Buffers],
    found: dict[Path, Memory],
) -> None:
    """`fixed` has the results whose buffers are decided by what they are for."""
    found[memory.path] = memory
    for k, item in enumerate(body):
        if isinstance(item, Call):
            for name in item.results:
                memory.buffers[name] = fixed.get(name) or memory.own(name)
        else:
            inner = Memory((*memory.path, k))
            fixed_inside = _arguments(item, memory, inner)
            _body(item.body, inner, fixed_inside, found)
            for name, outer in item.yields:
                memory.buffers[outer] = inner.outside(inner.buffers[name])


def _arguments(loop: Loop, outside: Memory, inner: Memory) -> dict[str, Buffers]:
    """Add the arguments to `inner`; give the buffers of the next values of the carried ones."""
    fixed: dict[str, Buffers] = {}
    for arg in loop.args:
        outer = frozenset(buffer for name in arg.outer for buffer in outside.buffers[name])
        if arg.kind == "carried" and arg.buffers == 2:
            this, following = inner.own(arg.name), inner.own(arg.next)
            either = outer | {(inner.path, f"{arg.name} (second buffer)")}
            inner.lift.update(dict.fromkeys(this | following, either))
            inner.buffers[arg.name], fixed[arg.next] = this, following
        elif len(arg.outer) > 1:
            inner.buffers[arg.name] = inner.own(arg.name)
            inner.lift[inner.path, arg.name] = outer
        else:
            inner.buffers[arg.name] = outer
            if arg.kind == "carried":
                fixed[arg.next] = outer
    return fixed
