"""The weights of experts: one tensor [experts, rows, columns], whichever way a file stores them.

Hugging Face has a tensor for each expert, and so had the first GGUF files. Kernels take rows by
eight, so experts of another width are filled up with rows, and columns, of zeros: their activations
are zero, and add nothing.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.model_file import WeightData
from hotloop.frontends.weights import Tensors
from hotloop.ir.formats import dequantise
from hotloop.ir.ops import GROUP
from hotloop.ir.types import TensorType, tensor

if TYPE_CHECKING:
    from hotloop.frontends.config import Experts


def padded(ffn: int) -> int:
    """The width of an expert in the graph."""
    return -(-ffn // GROUP) * GROUP


def prepare_experts(tensors: Tensors, layers: int, experts: "Experts") -> None:
    """Join the experts' tensors of every layer, and fill them up."""
    more = padded(experts.ffn) - experts.ffn
    for i in range(layers):
        for part, by in (("gate", (more, 0)), ("up", (more, 0)), ("down", (0, more))):
            name = f"blk.{i}.ffn_{part}_exps"
            _join(tensors, f"{name}.weight", [f"{name}.{e}.weight" for e in range(experts.count)])
            older = [f"blk.{i}.ffn_{part}.{e}.weight" for e in range(experts.count)]
            _join(tensors, f"{name}.weight", older)
            if f"{name}.weight" in tensors and any(by):
                tensors[f"{name}.weight"] = _filled(tensors[f"{name}.weight"], (0, *by))
            if f"{name}.bias" in tensors:
                tensors[f"{name}.bias"] = _filled(tensors[f"{name}.bias"], (0, by[0]))


def _join(tensors: Tensors, name: str, each: list[str]) -> None:
    """Put the tensors `each` one after the other, where they are there and alike."""
    found = [tensors[one] for one in each if one in tensors]
    if len(found) < len(each) or len({weight.type for weight in found}) != 1:
        return
    for one in each:
        del tensors[one]
    type = TensorType(found[0].type.format, (len(found), *found[0].type.shape))
    tensors[name] = WeightData(
        name, type, lambda: np.concatenate([weight.data for weight in found]), tuple(found)
    )


def _filled(weight: WeightData, by: tuple[int, ...]) -> WeightData:
    """As float32, with so many zeros at the end of each dimension."""
    shape = tuple(size + more for size, more in zip(weight.type.shape, by, strict=True))

    def make() -> NDArray[np.uint8]:
        values = np.pad(dequantise(weight.data, weight.type), [(0, more) for more in by])
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1)

    return WeightData(weight.name, tensor("f32", *shape), make, (weight,))


def rows_of_experts(weight: WeightData, name: str, rows: slice) -> WeightData:
    """Some rows of each expert."""
    experts, count, columns = weight.type.shape
    shape = (experts, len(range(*rows.indices(count))), columns)

    def take() -> NDArray[np.uint8]:
        return weight.data.reshape(experts, count, -1)[:, rows].reshape(-1)

    return WeightData(name, TensorType(weight.type.format, shape), take, (weight,))


def transposed_experts(weight: WeightData, name: str, columns: slice) -> WeightData:
    """Experts stored [experts, columns, rows]: some of the rows, columns last."""
    experts, inner, count = weight.type.shape
    plain = weight.type.format.numpy
    assert plain is not None
    shape = (experts, len(range(*columns.indices(count))), inner)

    def take() -> NDArray[np.uint8]:
        values = weight.data.view(plain).reshape(weight.type.shape)[:, :, columns]
        return np.ascontiguousarray(values.transpose(0, 2, 1)).view(np.uint8).reshape(-1)

    return WeightData(name, TensorType(weight.type.format, shape), take, (weight,))
