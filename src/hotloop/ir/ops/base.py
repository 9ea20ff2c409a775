"""What an op is: its signature, its meaning in NumPy, and how it may be cut into tiles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.graph import Attr
from hotloop.ir.types import TensorType, tensor

Array = NDArray[Any]
Attrs = Mapping[str, Attr]
Rows = Literal["features", "heads", "shares", "tokens", "one"]

#: Rows of a `features` tile come in groups of this many, one per vector lane.
GROUP = 8


class OpTypeError(ValueError):
    """Operands that do not fit the op; the text says which and why."""


@dataclass(frozen=True)
class OpDef:
    """What hotloop knows of an op.

    `infer` gives the result's type (None where the op only writes state) or raises `OpTypeError`.
    `meaning` takes the operands as arrays (weights as float32) and the attributes; it returns the
    result, and writes state operands in place. `aligned` are the operands of which a tile needs
    only the rows that it computes, where an op with the same kind of rows makes them; `writes` the
    state operands it writes. `grain` is the smallest number of rows that a tile may hold.
    """

    name: str
    rows: Rows
    infer: Callable[[Sequence[TensorType], Attrs], TensorType | None]
    meaning: Callable[..., Array | None]
    attrs: tuple[str, ...] = ()
    aligned: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    grain: Callable[[Attrs], int] = lambda attrs: GROUP
    starts_kernel: bool = False
    """Its result leaves the model (a token): fusion does not cross it."""
    scalars: Mapping[str, str] = field(default_factory=dict)
    """Attributes that may be a number in memory instead, and its format: f32 or i32."""
    variants: tuple[int, ...] = ()
    """Weights whose format the op does not care about: a loop may choose it per iteration."""
    leaves_rest: bool = False
    """Where its meaning gives NaN, the result is not written, and nothing may depend on it."""


def need(condition: bool, text: str) -> None:
    if not condition:
        raise OpTypeError(text)


def activation(type: TensorType, what: str) -> tuple[int, int]:
    need(
        type.format.name == "f32" and len(type.shape) == 2,
        f"{what} must be f32[T,N], not {type}",
    )
    return type.shape[0], type.shape[1]


def positions(type: TensorType, tokens: int) -> None:
    """The tokens of a step follow each other in one sequence, or each has its own."""
    wanted = (tensor("i32", 1), tensor("i32", tokens))
    either = " or ".join(map(str, dict.fromkeys(wanted)))
    need(type in wanted, f"positions must be {either}, not {type}")


def positions_of(pos: Array, tokens: int) -> Array:
    """i32[tokens]: the position of each token of a step."""
    return pos + np.arange(tokens, dtype=np.int32) if len(pos) == 1 else pos


def one(attrs: Attrs) -> int:
    return 1


def head_dim(attrs: Attrs) -> int:
    return int(attrs["head_dim"])
