"""Reading packed weights: where a block lies, and its numbers as float32."""

from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType
from hotloop.kernels.pack import block_layout
from hotloop.kernels.stream import prefetch_ahead
from hotloop.lang import Operand, Pointer, Value, bf16_to_f32, f16, f32, u16


def prefetch_block(weight: TensorType, group: Pointer, block: Value) -> None:
    """Ahead in the group by its bytes per block, so that scales after the quants count too."""
    layout = block_layout(weight)
    per_block = layout.nbytes // layout.blocks
    prefetch_ahead(group.at(block * per_block), per_block)


def load_plain(weight: TensorType, groups: list[Pointer], index: Operand, lanes: int = 0) -> Value:
    """Element `index` of a group of f32, f16 or bf16, or `lanes` from there on, as float32.

    Of two groups, as the halves of a vector.
    """
    element = {"bf16": u16, "f16": f16, "f32": f32}[weight.format.name]
    values = load_side_by_side([group.cast(element) for group in groups], index, lanes)
    return bf16_to_f32(values) if weight.format.name == "bf16" else values.to(f32)


def quants_at(weight: TensorType, group: Pointer, block: Value) -> Pointer:
    """Where the quants of a block begin."""
    return group.at(block * (block_layout(weight).vectors * 4 * GROUP))


def load_side_by_side(pointers: list[Pointer], index: Operand, lanes: int) -> Value:
    """`lanes` elements from `index` on, of one group, or of two as the halves of a vector."""
    first, *rest = [pointer.load(index, lanes) for pointer in pointers]
    return first.shuffle(list(range(2 * lanes)), rest[0]) if rest else first


def load_scales_of(
    weight: TensorType, groups: list[Pointer], block: Value
) -> tuple[Value, Value | None]:
    """The scales of a block for the rows of one group or two, and the minima if there are any."""
    layout = block_layout(weight)

    def halves(start: int) -> Value:
        streams = [group.at(start).cast(f16) for group in groups]
        return load_side_by_side(streams, block * GROUP, GROUP).to(f32)

    return halves(layout.scales), None if layout.minima is None else halves(layout.minima)


def load_scales(
    weight: TensorType, group: Pointer, index: Operand, lanes: int = 0
) -> tuple[Value, Value | None]:
    """The scale of (block, row) number `index`, and the minimum where the format has one.

    With `lanes`, those of as many rows from there on.
    """
    layout = block_layout(weight)
    scale = group.at(layout.scales).cast(f16).load(index, lanes).to(f32)
    if layout.minima is None:
        return scale, None
    return scale, group.at(layout.minima).cast(f16).load(index, lanes).to(f32)
