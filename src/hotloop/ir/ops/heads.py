"""spread, narrow: heads that have a part in common, and heads cut to a part.

Multi-head latent attention (DeepSeek-V2, 2024, arXiv 2405.04434) wants both: the turned part of
its keys is the same for all heads, and its values are shorter than its keys.
"""

from collections.abc import Sequence

import numpy as np

from hotloop.ir.ops.base import Array, Attrs, OpDef, activation, head_dim, need
from hotloop.ir.types import TensorType, tensor


def _infer_spread(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, common = types
    tokens, width = activation(x, "the input")
    more, part = activation(common, "the common part")
    head = int(attrs["head_dim"])
    need(width % head == 0, f"width {width} is not whole heads of {head}")
    need(more == tokens and part <= head, f"{common} is no part of heads of {head} in {x}")
    return x


def _spread(x: Array, common: Array, *, head_dim: int) -> Array:
    """Add `common` to the first elements of each head."""
    out = x.reshape(len(x), -1, head_dim).copy()
    out[..., : common.shape[1]] += common[:, None]
    return out.reshape(x.shape)


def _infer_narrow(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (x,) = types
    tokens, width = activation(x, "the input")
    head, keep = int(attrs["head_dim"]), int(attrs["keep"])
    need(width % head == 0 and 0 < keep <= head, f"{keep} of heads of {head} in a width of {width}")
    return tensor("f32", tokens, width // head * keep)


def _narrow(x: Array, *, head_dim: int, keep: int) -> Array:
    """The first `keep` elements of each head, side by side."""
    return np.asarray(x.reshape(len(x), -1, head_dim)[..., :keep].reshape(len(x), -1))


OPS = (
    OpDef(
        "spread",
        "features",
        _infer_spread,
        _spread,
        ("head_dim",),
        aligned=(0,),
        grain=head_dim,
    ),
    OpDef(
        "narrow",
        "features",
        _infer_narrow,
        _narrow,
        ("head_dim", "keep"),
        grain=lambda attrs: int(attrs["keep"]),
    ),
)
