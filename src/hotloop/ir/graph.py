"""The graph: the ops of one model step, as read from a model file.

    graph @name {
      input %token : i32[1]
      weight %blk.0.attn_norm.weight : f32[576]
      state %blk.0.keys : f16[3,8192,64]
      %x = embed(%token, %token_embd.weight) : f32[1,576]
      store_keys(%blk.0.keys, %k, %pos)
      output %next, %done
      feedback %next -> %token
      until %done
    }

Values are SSA: each name is defined once, before its uses. A *state* is memory that ops read and
write in place; the order of ops orders those accesses. A *feedback* says that an output of this
step is an input of the next, which is what makes a run of steps a chain of calls; `until` names the
output that, when not zero, ends the chain. `count` names the output that says how many of the next
step's tokens there are: a machine computes no more rows, so nothing may depend on the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hotloop.ir.types import TensorType

Attr = int | float | str


@dataclass(frozen=True)
class Value:
    """A name and its type."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"%{self.name} : {self.type}"


@dataclass(frozen=True)
class Op:
    """One tensor operation: `result = name(operands) {attrs}`; no result where it only writes.

    `scalars` are attributes whose numbers are parameters of the kernel: (attribute, parameter).
    """

    name: str
    operands: tuple[str, ...]
    result: Value | None = None
    attrs: tuple[tuple[str, Attr], ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The names it reads (or writes in place): operands, and parameters for attributes."""
        return (*self.operands, *(name for _, name in self.scalars))

    def attr(self, name: str) -> Attr:
        return dict(self.attrs)[name]

    def int(self, name: str) -> int:
        """The attribute `name`, which is an int."""
        value = self.attr(name)
        assert isinstance(value, int)
        return value

    def float(self, name: str) -> float:
        return float(self.attr(name))


@dataclass(frozen=True)
class Graph:
    """One step of a model: declarations, ops in order, outputs."""

    name: str
    inputs: tuple[Value, ...]
    weights: tuple[Value, ...]
    states: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    feedback: tuple[tuple[str, str], ...] = ()
    until: str = ""
    count: str = ""

    def declared(self) -> Iterator[Value]:
        yield from self.inputs
        yield from self.weights
        yield from self.states

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The type of every value by name."""
        types = {value.name: value.type for value in self.declared()}
        types.update((op.result.name, op.result.type) for op in self.ops if op.result)
        return types
