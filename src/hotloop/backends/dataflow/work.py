"""What each op costs one of `sockets` equal sockets: bytes, operations, messages.

Tensor parallelism as Megatron-LM does it (Shoeybi et al., 2019, arXiv 1909.08053), derived from the
ops instead of written down: a value is *whole* on every socket, or *split* over its last dimension.

    a product of a whole input       its rows are split, and so is its result
    a product of a split input       its columns are split; the sum over sockets is an all-reduce
    an op by rows (rope, swiglu, …)  as its operands
    any other op                     needs whole ones: an all-gather before it

The KV cache is split over heads, and over positions where there are more sockets than heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from hotloop.ir.graph import Op
from hotloop.ir.ops import OPS
from hotloop.ir.program import Kernel
from hotloop.ir.types import TensorType

#: Products, whose second operand is a matrix, or one for each expert.
PRODUCTS = ("linear", "expert_linear", "expert_mix")
_EXPERTS = ("expert_linear", "expert_mix")
_LOOKUPS = ("embed", "rope")
_ATTENTION = ("attend", "attention")
#: Ops on whole tokens that take them in parts: heads, blocks of 32.
_BY_PARTS = ("combine", "quantise")
#: Bytes that an activation takes between sockets: bf16.
WIRE_BYTES = 2
#: A call none of whose arguments is a constant.
NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Workload:
    """A step: `batch` sequences of `context` positions, each adding `tokens` tokens."""

    context: int
    batch: int = 1
    tokens: int = 1

    @property
    def rows(self) -> int:
        """Tokens of the step, for a graph that is written for one."""
        return self.batch * self.tokens


@dataclass(frozen=True)
class Work:
    """One op on one socket.

    `streamed` are its bytes of weights and cache, `moved` those of its activations; a socket sends
    `gathered` bytes to make its inputs whole, and `reduced` to make its result whole.
    """

    op: Op
    streamed: float
    operations: float
    moved: float
    gathered: float
    reduced: float
    waits: tuple[str, ...]
    """Operands that must be complete, not only their first rows."""
    chosen_by: str = ""
    """The operand that says which weights are read, where one does: the slots of experts."""


def kernel_work(
    kernel: Kernel,
    weights: Mapping[str, TensorType],
    split: frozenset[str],
    sockets: int,
    load: Workload,
    numbers: Mapping[str, float] = NO_NUMBERS,
) -> tuple[tuple[Work, ...], frozenset[str]]:
    """The work of a call, op by op, and which of the kernel's results are split.

    `weights` are the params that hold weights, with the types that those have; `split` the params
    that hold split values; `numbers` those of the params that are constants.
    """
    layout = set(split)
    types = {**kernel.types, **weights}
    work = []
    for op in kernel.ops:
        made, halves = _op_work(op, types, weights, layout, sockets, load, numbers)
        work.append(made)
        if halves and op.result:
            layout.add(op.result.name)
    return tuple(work), frozenset(layout & set(kernel.results))


def _op_work(
    op: Op,
    types: Mapping[str, TensorType],
    weights: Mapping[str, TensorType],
    layout: set[str],
    sockets: int,
    load: Workload,
    numbers: Mapping[str, float],
) -> tuple[Work, bool]:
    streamed = sum(_weight_bytes(op, name, types, load) for name in op.operands if name in weights)
    streamed += _cache_bytes(op, types, load, numbers)
    inputs = [name for name in op.operands if name not in weights]
    split_inputs = [name for name in inputs if name in layout]
    result = op.result.type if op.result else None
    gathered, reduced, halves = 0.0, 0.0, False
    if op.name in PRODUCTS:
        halves = op.operands[0] not in layout
        if not halves and result:
            reduced = 2 * _wire(result, load)
    elif op.name in _ATTENTION or (split_inputs and _row_by_row(op)):
        halves = True
    elif split_inputs:
        gathered = sum(_wire(types[name], load) for name in split_inputs)
        layout.difference_update(split_inputs)
    shared = 1 if op.name in _LOOKUPS else sockets
    part = sockets if halves or op.name in PRODUCTS else 1
    moved = sum(types[name].nbytes for name in inputs if name in types and not _is_state(name, op))
    moved += result.nbytes if result else 0
    work = Work(
        op=op,
        streamed=streamed / shared,
        operations=_operations(op, types, load) / part,
        moved=moved * load.rows / part,
        gathered=gathered * (sockets - 1) / sockets,
        reduced=reduced * (sockets - 1) / sockets,
        waits=tuple(name for i, name in enumerate(op.operands) if i not in OPS[op.name].aligned),
        chosen_by=op.operands[2] if op.name in _EXPERTS else "",
    )
    return work, halves and sockets > 1


def _row_by_row(op: Op) -> bool:
    """Whether a socket's part of the inputs is enough for its part of the result."""
    definition = OPS[op.name]
    if op.name in _BY_PARTS:
        return True
    return bool(definition.aligned) and definition.rows in ("features", "heads")


def _is_state(name: str, op: Op) -> bool:
    if op.name in _ATTENTION:
        return name in op.operands[1:3]
    return name in {op.operands[i] for i in OPS[op.name].writes}


def _wire(type: TensorType, load: Workload) -> float:
    return type.elements * WIRE_BYTES * load.rows


def _weight_bytes(op: Op, name: str, types: Mapping[str, TensorType], load: Workload) -> float:
    """Bytes of a weight that the step reads: all, a row for each token, or its experts."""
    type = types[name]
    if op.name in _LOOKUPS:
        return type.nbytes / type.shape[0] * load.rows * _tokens(op, types)
    if op.name in _EXPERTS and len(type.shape) == 3:
        return type.nbytes * _touched(type.shape[0], types[op.operands[2]].shape, load.rows)
    return type.nbytes


def _touched(experts: int, slots: Sequence[int], rows: int) -> float:
    """The part of the experts that a step reads, expected where tokens choose evenly."""
    tokens, chosen = slots[0] * rows, slots[1]
    return float(1 - (1 - chosen / experts) ** tokens)


def _cache_bytes(
    op: Op, types: Mapping[str, TensorType], load: Workload, numbers: Mapping[str, float]
) -> float:
    """Keys and values of all positions that the op sees, of each sequence once."""
    if op.name not in _ATTENTION:
        return 0.0
    window = dict(op.attrs).get("window", 0)
    for attr, param in op.scalars:
        window = numbers.get(param, window) if attr == "window" else window
    positions = min(load.context, int(window) or load.context)
    each = sum(position_bytes(types[name]) for name in op.operands[1:3]) * positions
    rows = types[op.operands[0]].shape[0] if op.name == "attend" else 1  # of sequences of their own
    return each * rows * load.batch


def position_bytes(cache: TensorType) -> float:
    """Bytes of one position of a cache [heads,context,dim] or [pages,heads,page,dim]."""
    *pages, _, context, _ = cache.shape
    return cache.nbytes / (context * prod(pages))


def _operations(op: Op, types: Mapping[str, TensorType], load: Workload) -> float:
    """Floating-point operations of the step: two for each multiplication with its addition."""
    tokens = load.rows * _tokens(op, types)
    if op.name in PRODUCTS:
        weight = types[op.operands[1]]
        slots = types[op.operands[2]].shape[1] if op.name in _EXPERTS else 1
        return 2.0 * prod(weight.shape[-2:]) * slots * tokens
    if op.name in _ATTENTION:
        query = types[op.operands[0]].shape[1]
        return 4.0 * query * load.context * tokens
    result = op.result.type if op.result else types[op.operands[1]]
    return 8.0 * result.elements * load.rows


def _tokens(op: Op, types: Mapping[str, TensorType]) -> int:
    result = op.result.type if op.result else types[op.operands[1]]
    return result.shape[0]
