"""diff: every value of the compiled step next to its meaning in NumPy.

Each op is computed from what the compiled program computed before it, not from what NumPy did: so
an error shows at the op that makes it and nowhere else, and rounding does not add up over layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.decoder import Decoder, Step
from hotloop.ir.formats import dequantise
from hotloop.ir.graph import Graph, Op
from hotloop.ir.interp import run_graph
from hotloop.ir.ops import OPS
from hotloop.ir.types import TensorType
from hotloop.runtime.sampling import Sampling

Array = NDArray[Any]


class Traced(Protocol):
    """What `compare` asks of a model (`hotloop.api.Model` with the schedule ops is one)."""

    graph: Graph
    decoder: Decoder

    @property
    def activations(self) -> str: ...
    @property
    def context(self) -> int: ...
    def trace(self, ids: Sequence[int]) -> Iterator[tuple[str, Array]]: ...


@dataclass(frozen=True)
class Difference:
    """How far a value is from its meaning: `error` is relative to the largest element.

    `at` is the element that differs most. An error is infinite where NaN meets a number, and where
    integers differ.
    """

    position: int
    value: str
    op: Op
    error: float
    at: tuple[int, ...]
    compiled: float
    meaning: float


def compare(model: Traced, ids: Sequence[int]) -> list[Difference]:
    """The differences of all values at all positions of `ids`, in the order of execution."""
    values = _declared_values(model)
    found: list[Difference] = []
    for at in range(len(ids)):
        found += _compare_step(model, values, ids[: at + 1])
    return found


def _compare_step(model: Traced, values: dict[str, Array], ids: Sequence[int]) -> list[Difference]:
    """The step that takes in the last of `ids`; it brings the states in `values` up to date."""
    at = len(ids) - 1
    makers = {op.result.name: op for op in model.graph.ops if op.result}
    compiled = dict(model.trace(ids))
    found: list[Difference] = []

    def check(word: str, array: Array) -> None:
        name = word.removeprefix("%")
        if name in compiled:
            found.append(_difference(at, name, makers[name], compiled[name], array))
            array[...] = compiled[name]

    values["token"][:] = ids[-1]
    values["pos"][:] = at
    values["ring"][0, at] = ids[-1]
    Sampling().write(values["control"])
    values["control"]["last_pos"] = at + 1
    run_graph(model.graph, values, trace=check)
    return found


def _declared_values(model: Traced) -> dict[str, Array]:
    """Weights as float32; inputs and states filled with zeros."""
    step = Step(context=model.context, activations=model.activations)
    values: dict[str, Array] = {}
    for value in model.graph.weights:
        weight = model.decoder.weight(value.name, step)
        values[value.name] = dequantise(weight.data, weight.type).reshape(value.type.shape)
    for value in (*model.graph.inputs, *model.graph.states):
        values[value.name] = np.zeros(value.type.shape, _dtype(value.type))
    values["pages"][0] = range(values["pages"].shape[1])
    return values


def _dtype(type: TensorType) -> np.dtype[Any]:
    assert type.format.numpy is not None
    return type.format.numpy


def _difference(position: int, name: str, op: Op, compiled: Array, meaning: Array) -> Difference:
    a, b = compiled.astype(np.float64), meaning.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
    unwritten = np.isnan(b) if OPS[op.name].leaves_rest else False
    distance[np.isnan(b) & (np.isnan(a) | unwritten)] = 0
    distance[np.isnan(distance)] = np.inf
    worst = np.unravel_index(int(distance.argmax()), distance.shape)
    largest = np.nanmax(np.abs(b), initial=np.finfo(np.float32).tiny)
    error = float(distance[worst] / largest)
    if compiled.dtype.kind == "i" and error > 0:
        error = float("inf")
    at = tuple(int(index) for index in worst)
    return Difference(position, name, op, error, at, float(a[worst]), float(b[worst]))
