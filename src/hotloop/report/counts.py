"""What one token costs, counted on the program: calls, launches, synchronisations, bytes.

    calls      of kernels, with a loop over layers as one: that is what it is for the host
    launches   one for each item of the program, or one for the whole program; a program whose loop
               over tokens is open-ended takes one for all tokens together
    syncs      stages at which a thread may have to wait for others, and the join of each launch;
               the first stages of a launch start at once, and count only inside a loop over tokens
    macs       multiply-adds of the matrix products of a prompt's token, logits left out: a prompt
               needs those of its last token only
    bytes      what the file stores of every weight that a token needs: all of a matrix or a norm,
               one row of an embedding, the experts that it is sent to; and the keys and values of
               the positions before, as many as a layer's window lets it see

The counts are those of a decode step: one token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hotloop.ir.graph import Attr, Graph, Op
from hotloop.ir.program import ENTRY, Call, Item, Loop, Program, calls, count_calls
from hotloop.ir.types import TensorType


@dataclass(frozen=True)
class Counts:
    """Per token, but for `kernels` and `launches_per_run`."""

    kernels: int
    calls: int
    launches_per_run: int
    """Launches of one run of the program: a step, or a generation where `endless`."""
    endless: bool
    """Whether one run makes all tokens of a generation."""
    syncs: int

    def launches(self, tokens: int) -> float:
        """Launches per token in a generation of `tokens` tokens."""
        return self.launches_per_run / tokens if self.endless else float(self.launches_per_run)

    @property
    def launches_text(self) -> str:
        return "1 per generation" if self.endless else f"{self.launches_per_run:,}"


@dataclass(frozen=True)
class Traffic:
    """Bytes that one token reads: `weights` by format, as stored in the file, and the KV cache."""

    weights: Mapping[str, int]
    kv: Mapping[int, int]
    """Bytes of a position of the KV cache, by the window of the layers that read it (0: none)."""

    @property
    def kv_per_position(self) -> int:
        """Bytes of a position that all layers see."""
        return sum(self.kv.values())

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())

    def total(self, position: int) -> int:
        """Weights, and what is seen of the cache with `position` tokens before this one."""
        seen = position + 1
        cache = sum(nbytes * min(seen, window or seen) for window, nbytes in self.kv.items())
        return self.weight_bytes + cache


def count(program: Program) -> Counts:
    """The counts of a program for one token at a time."""
    endless = any(isinstance(item, Loop) and item.trip is None for item in program.body)
    launches = len(program.body) if program.launch == "item" else 1
    waits = _waits(program.body)
    if not endless:
        first_calls = list(calls(program.body))
        if program.launch == "program":
            first_calls = first_calls[:1]
        waits += launches - sum(_entries(call) for call in first_calls)
    return Counts(len(program.kernels), count_calls(program.body), launches, endless, waits)


def traffic(program: Program) -> Traffic:
    """The bytes that one token reads, by walking every call with the buffers that it gets."""
    read: dict[str, int] = {}
    kv: dict[int, int] = {}
    numbers = {constant.value.name: constant.number for constant in program.constants}
    for call, args in executed(program.body, {}):
        weights = weights_of(program, call, args)
        types = {**call.kernel.types, **weights}
        for op in call.kernel.ops:
            for name in op.operands:
                if name in weights:
                    format_name, share = types[name].format.name, weight_share(op, name, types)
                    read[format_name] = read.get(format_name, 0) + share
            if op.name in ("attend", "attention"):
                window = _window(op, call, args, numbers)
                each = sum(_per_position(types[name]) for name in op.operands[1:3])
                kv[window] = kv.get(window, 0) + each
    return Traffic(read, kv)


def _window(op: Op, call: Call, args: tuple[str, ...], numbers: Mapping[str, Attr]) -> int:
    """How many positions an attention sees, 0: all; where it is an argument, that of this call."""
    given = {param.name: name for param, name in zip(call.kernel.params, args, strict=True)}
    lifted = dict(op.scalars).get("window")
    return int(dict(op.attrs)["window"] if lifted is None else numbers[given[lifted]])


def multiply_adds(graph: Graph) -> int:
    """Of each token's matrix products in a step, but for those that are the step's outputs."""
    return sum(
        graph.types[op.operands[1]].elements
        for op in graph.ops
        if op.name == "linear" and op.result and op.result.name not in graph.outputs
    )


def weights_of(program: Program, call: Call, args: tuple[str, ...]) -> dict[str, TensorType]:
    """The call's parameters that are weights, with the types of those: of variants, the chosen."""
    stored = {value.name: value.type for value in program.weights}
    pairs = zip(call.kernel.params, args, strict=True)
    return {param.name: stored[name] for param, name in pairs if name in stored}


def weight_share(op: Op, name: str, types: Mapping[str, TensorType]) -> int:
    """Bytes that one token reads of a weight: a row, or its slots' experts, or all."""
    type = types[name]
    if op.name in ("embed", "rope"):
        return type.nbytes // type.shape[0]
    if op.name in ("expert_linear", "expert_mix"):
        return type.nbytes // type.shape[0] * types[op.operands[2]].shape[1]
    return type.nbytes


def _per_position(cache: TensorType) -> int:
    """Bytes of one position of a cache [pages, heads, page, head_dim]."""
    return cache.nbytes // (cache.shape[0] * cache.shape[2])


def executed(
    body: tuple[Item, ...], names: Mapping[str, str]
) -> Iterator[tuple[Call, tuple[str, ...]]]:
    """Every call that one token executes, with its arguments by their names outside all loops.

    `names` gives the outside name of each name in `body` that has one.
    """
    for item in body:
        if isinstance(item, Call):
            yield item, tuple(names.get(name, name) for name in item.args)
            continue
        for k in range(item.trip or 1):
            inside = {
                arg.name: names.get(outer, outer)
                for arg in item.args
                for outer in [arg.outer[k if len(arg.outer) > 1 else 0]]
            }
            yield from executed(item.body, inside)


def _waits(body: tuple[Item, ...]) -> int:
    """Stages that wait for anything, in one pass over `body`."""
    return sum(
        sum(bool(stage.after) or stage.barrier for stage in item.kernel.stages)
        if isinstance(item, Call)
        else (item.trip or 1) * _waits(item.body)
        for item in body
    )


def _entries(call: Call) -> int:
    """Stages of a call that wait for nothing but what precedes it."""
    return sum(stage.after == (ENTRY,) and not stage.barrier for stage in call.kernel.stages)
