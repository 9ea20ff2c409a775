"""rope: rotary position embedding."""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, head_dim, need, position
from hotloop.ir.types import TensorType


def _infer_rope(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, pos, table = types
    _, width = activation(x, "the input")
    position(pos)
    head = int(attrs["head_dim"])
    need(head % 2 == 0 and width % head == 0, f"width {width} is not whole heads of {head}")
    need(
        table.format.name == "f32" and table.shape[1:] == (head,),
        f"the table must be f32[context,{head}], not {table}",
    )
    need(
        attrs["pairing"] in ("interleaved", "half"),
        f"pairing must be interleaved or half, not {attrs['pairing']}",
    )
    return x


def _rope(x: Array, pos: Array, table: Array, *, head_dim: int, pairing: str) -> Array:
    """Rotate pairs of each head: elements (2i, 2i+1) if interleaved, (i, i + half) if half.

    Row p of the table holds cos of the head_dim/2 angles of position p, then their sin.
    """
    tokens, width = x.shape
    half = head_dim // 2
    rows = table[int(pos[0]) : int(pos[0]) + tokens]
    cos, sin = rows[:, None, :half], rows[:, None, half:]
    heads = x.reshape(tokens, width // head_dim, head_dim)
    if pairing == "interleaved":
        a, b = heads[..., 0::2], heads[..., 1::2]
        out = np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
    else:
        a, b = heads[..., :half], heads[..., half:]
        out = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return np.asarray(out.reshape(tokens, width), dtype=np.float32)


OPS = (
    OpDef(
        "rope",
        "features",
        _infer_rope,
        _rope,
        ("head_dim", "pairing"),
        aligned=(0,),
        grain=head_dim,
    ),
)
