"""Pre-quantised weights in the formats of `hotloop.ir.grouped`, made when somebody asks."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.column_order import Order, order_weight
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.stored import Stored
from hotloop.ir.grouped import FILE, pack_nibbles
from hotloop.ir.types import FORMATS, GROUPS, TensorType
from hotloop.util.errors import UnsupportedError

Codes = NDArray[np.uint8]


def format_of(kind: str, name: str, columns: int, group: int) -> str:
    """The format "u4", "u8" or "f8" whose groups tile those of `group` columns.

    Raises `UnsupportedError` where none does.
    """
    for size in reversed(GROUPS):
        if group % size == 0 and columns % size == 0:
            return f"{kind}_{size}"
    raise UnsupportedError(
        f"tensor {name} has {columns} columns in groups of {group}; hotloop wants multiples of "
        f"{GROUPS[0]}: use an unquantised or a GGUF file."
    )


def grouped(
    module: str,
    kind: str,
    shape: tuple[int, int],
    group: int,
    sources: Sequence[Stored],
    codes: Callable[[], Codes],
    scales: Callable[[], NDArray[np.float32]],
    zeros: Callable[[], NDArray[np.integer]] | None = None,
    order: Order | None = None,
) -> list[WeightData]:
    """`module`.weight [N, K] = `shape`, with a scale for each row and `group` columns.

    `codes` gives u8[N, K], `scales` f32 and `zeros` integers, both [N or 1, K / group rounded up,
    or 1]; all are made of `sources`. With an `order`, groups are of columns in that order, which is
    the second of the results.
    """
    rows, columns = shape
    name = f"{module}.weight"
    format = FORMATS[format_of(kind, name, columns, group)]
    first_columns = np.arange(0, columns, format.block)

    def spread(values: NDArray[np.generic]) -> NDArray[np.generic]:
        """[N or 1, groups] as [N, blocks]."""
        of_block = first_columns // group if values.shape[1] > 1 else np.zeros_like(first_columns)
        return np.broadcast_to(values[:, of_block], (rows, len(first_columns)))

    def make() -> NDArray[np.uint8]:
        blocks = np.empty((rows, len(first_columns)), FILE[format.name])
        blocks["scale"] = spread(scales())
        if zeros is not None:
            blocks["zero"] = spread(zeros())
        in_order = codes() if order is None else codes()[:, order]
        by_block = in_order.reshape(*blocks.shape, format.block)
        blocks["codes"] = pack_nibbles(by_block) if kind == "u4" else by_block
        return blocks.reshape(-1).view(np.uint8)

    made_of = tuple(source.bytes() for source in sources)
    weight = WeightData(name, TensorType(format, shape), make, made_of)
    return [weight] if order is None else [weight, order_weight(module, order)]


def unpacked(
    words: NDArray[np.generic], bits: int, axis: int, order: Sequence[int] | None = None
) -> Codes:
    """Codes of `bits` bits in int32 words, 32 / bits neighbours along `axis` to a word.

    `order` says which place of a word, counted from its lowest bits, holds each neighbour.
    """
    count = 32 // bits
    shifts = np.array([bits * place for place in order or range(count)], np.uint32)
    moved: NDArray[np.uint32] = np.moveaxis(words.view(np.uint32), axis, -1)
    codes = ((moved[..., None] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return np.moveaxis(codes.reshape(*moved.shape[:-1], -1), -1, axis)
