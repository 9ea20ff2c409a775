"""rope: rotary position embedding."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import (
    Array,
    Attrs,
    OpDef,
    activation,
    head_dim,
    need,
    positions,
    positions_of,
)
from hotloop.ir.types import TensorType


def _infer_rope(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, pos, table = types
    tokens, width = activation(x, "the input")
    positions(pos, tokens)
    head = int(attrs["head_dim"])
    need(head % 2 == 0 and width % head == 0, f"width {width} is not whole heads of {head}")
    need(
        table.format.name == "f32" and len(table.shape) == 2 and table.shape[1] <= head,
        f"the table must be f32[rows,at most {head}], not {table}",
    )
    need(table.shape[1] % 2 == 0, f"a table has pairs of cos and sin, not {table.shape[1]} numbers")
    need(
        attrs["pairing"] in ("interleaved", "half"),
        f"pairing must be interleaved or half, not {attrs['pairing']}",
    )
    return x


def _rope(
    x: Array, pos: Array, table: Array, *, head_dim: int, pairing: str, first_row: int
) -> Array:
    """Rotate pairs of each head: elements (2i, 2i+1) if interleaved, (i, i + half) if half.

    Row first_row + p of the table holds cos of the angles of position p, then their sin. Where
    that is less than head_dim numbers, it rotates as many elements of a head, and the rest stay.
    """
    tokens, width = x.shape
    half = table.shape[1] // 2
    rows = table[first_row + positions_of(pos, tokens)]
    cos, sin = rows[:, None, :half], rows[:, None, half:]
    heads = x.reshape(tokens, width // head_dim, head_dim)
    turned, rest = heads[..., : 2 * half], heads[..., 2 * half :]
    if pairing == "interleaved":
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
        out = pairs.reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        out = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    out = np.concatenate([out, rest], axis=-1)
    return np.asarray(out.reshape(tokens, width), dtype=np.float32)


OPS = (
    OpDef(
        "rope",
        "features",
        _infer_rope,
        _rope,
        ("first_row", "head_dim", "pairing"),
        aligned=(0,),
        grain=head_dim,
        scalars={"first_row": "i32"},
    ),
)
