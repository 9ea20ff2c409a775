"""expert_linear, expert_mix: products with the rows of the experts that a token goes to.

A weight [E, N, K] is packed as the matrix [E · N, K], so each expert is a matrix of its own within
it, and its rows are computed by the dot products of `linear`. Each (token, slot, row) is by itself,
whatever the tokens: neither their number nor the tiling changes a bit.
"""

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.linear import dot_rows
from hotloop.kernels.pack import group_bytes, matrix
from hotloop.kernels.tile import OpSpec, Tile, kernel, q8_stride, row_stride
from hotloop.lang import Pointer, Value, f32, fma, i32, i64, loop, select, strip


@kernel("expert_linear")
def expert_linear(tile: Tile) -> None:
    experts = _Experts(tile)
    rows, slots = experts.rows, experts.slots
    assert tile.result is not None
    y, stride = tile.result.cast(f32), row_stride(slots * rows)
    for token in loop(tile.count):
        record = _record(tile, token)
        for group in loop((tile.hi + (GROUP - 1)) // GROUP, tile.lo // GROUP):
            expert = experts.chosen(token, group // (rows // GROUP))
            sums = experts.dot(expert, group % (rows // GROUP), record)
            y.store(sums, token * stride + group * GROUP)


def _slot_bytes(x: TensorType, columns: int) -> int:
    """Bytes of a slot's part of the activation as a record of its own."""
    return q8_stride(columns) if x.format.name == "q8" else 0


def _mix_scratch(spec: OpSpec) -> int:
    """The record of one slot, where the input's is not simply a piece of the whole one."""
    return _slot_bytes(spec.operands[0], spec.operands[1].shape[2])


@kernel("expert_mix", scratch=_mix_scratch)
def expert_mix(tile: Tile) -> None:
    """Slot after slot: long streams of weights, and sums in the order of slots."""
    experts = _Experts(tile)
    stride = row_stride(experts.slots)
    assert tile.result is not None
    y = tile.result.cast(f32)
    weights = tile.operands[3].cast(f32)
    first, end = tile.lo // GROUP, (tile.hi + (GROUP - 1)) // GROUP
    for token in loop(tile.count):
        out = y.at(token * row_stride(experts.rows))
        for slot in loop(experts.slots):
            expert, record = experts.chosen(token, slot), _slot_record(tile, token, slot)
            weight = weights.load(token * stride + slot).broadcast(GROUP)
            for group in loop(end, first):
                sums = experts.dot(expert, group, record)
                before = select(slot > 0, out.load(group * GROUP, GROUP), 0)
                out.store(fma(sums, weight, before), group * GROUP)


class _Experts:
    """The stacked weights, the ids and the bias of the op being traced."""

    def __init__(self, tile: Tile) -> None:
        spec = tile.spec
        _, self.rows, columns = spec.operands[1].shape
        self.slots = spec.operands[2].shape[1]
        self.x = TensorType(spec.operands[0].format, (1, columns))
        self.weight = matrix(spec.operands[1])
        self.packed = tile.operands[1]
        self.ids = tile.operands[2].cast(i32)
        before = {"expert_linear": 3, "expert_mix": 4}[spec.name]
        self.bias = [bias.cast(f32) for bias in tile.operands[before:]]

    def chosen(self, token: Value, slot: Value) -> Value:
        return self.ids.load(token * row_stride(self.slots) + slot).to(i64)

    def at(self, expert: Value, group: Value) -> Pointer:
        """Where a group of rows of an expert begins."""
        number = expert * (self.rows // GROUP) + group
        return self.packed.at(number * group_bytes(self.weight))

    def dot(self, expert: Value, group: Value, record: Pointer) -> Value:
        """A group of rows times the activation at `record`, plus the bias."""
        sums = dot_rows(self.x, self.weight, [self.at(expert, group)], record)
        for bias in self.bias:
            sums = sums + bias.load(expert * self.rows + group * GROUP, GROUP)
        return sums


def _record(tile: Tile, token: Value) -> Pointer:
    """Where a token's activation begins."""
    x = tile.spec.operands[0]
    stride = q8_stride(x.shape[1]) if x.format.name == "q8" else row_stride(x.shape[1]) * 4
    return tile.operands[0].at(token * stride)


def _slot_record(tile: Tile, token: Value, slot: Value) -> Pointer:
    """A slot's part of a token's activation; in 8 bit, gathered into scratch."""
    whole, columns = _record(tile, token), tile.spec.operands[1].shape[2]
    width = tile.spec.operands[0].shape[1]
    if tile.spec.operands[0].format.name != "q8":
        return whole.at(slot * (columns * 4))
    blocks, blocks_of_all = columns // 32, width // 32
    copies = (  # quants, scales, scales × sums, sums, as `hotloop.kernels.tile` lays them out
        (0, slot * columns, columns),
        (columns, slot * (blocks * 4) + width, blocks * 4),
        (columns + blocks * 4, slot * (blocks * 4) + (width + blocks_of_all * 4), blocks * 4),
        (columns + blocks * 8, slot * (blocks * 8) + (width + blocks_of_all * 8), blocks * 8),
    )
    for to, source, nbytes in copies:
        into, out_of = tile.scratch.at(to), whole.at(source)
        for i, lanes in strip(nbytes, lanes=32):
            into.store(out_of.load(i, lanes), i)
    return tile.scratch
