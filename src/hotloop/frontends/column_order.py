"""Columns in the order of activations: groups of columns that are no neighbours.

GPTQ can round the columns with the largest activations first (`desc_act`, `actorder`; Frantar et
al., 2022, arXiv 2210.17323), so that a group has columns from anywhere, and the file says which
group each is in. Sorted by group they are neighbours again, and kernels take them as any others;
the product's input is gathered in the same order. No number changes.

That order is a tensor next to the weight, `module`.order i32[K], where it is not 0, 1, 2, …
"""

from collections.abc import MutableMapping

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.model_file import WeightData
from hotloop.frontends.stored import Stored
from hotloop.ir.types import tensor
from hotloop.util.errors import ModelFileError, UnsupportedError

Order = NDArray[np.int32]
SUFFIX = ".order"


def column_order(groups: Stored | None, columns: int, group: int) -> Order | None:
    """The columns by their `groups`, in each as they come; None where that is how they lie.

    `groups` has the number of each column's group, `group` columns in each but the last.
    """
    if groups is None:
        return None
    if groups.shape != (columns,):
        raise ModelFileError(
            f"{groups} should be [{columns}], a group for each column; download the model again."
        )
    numbers, last = groups.array().astype(np.int64), (columns - 1) // group
    outside = numbers[(numbers < 0) | (numbers > last)]
    if outside.size:
        raise ModelFileError(
            f"{groups} names group {outside[0]}, but there are 0 to {last}; download the model "
            "again."
        )
    order = np.argsort(numbers, kind="stable").astype(np.int32)
    found = numbers[order]
    in_turn = np.arange(columns) // group
    if not np.array_equal(found, in_turn):
        first = in_turn[found != in_turn][0]
        raise UnsupportedError(
            f"{groups} puts {np.count_nonzero(numbers == first)} columns into group {first}, where "
            f"the quantization_config has groups of {group}; hotloop wants groups of one size."
        )
    return None if np.array_equal(order, np.arange(columns)) else order


def order_weight(module: str, order: Order) -> WeightData:
    """`module`.order."""
    name = f"{module}{SUFFIX}"
    return WeightData(name, tensor("i32", order.size), order.view(np.uint8))


def is_order(name: str, weight: WeightData) -> bool:
    """Whether the tensor is the order of a module's columns."""
    return name.endswith(SUFFIX) and weight.type.format.name == "i32"


def share_orders(tensors: MutableMapping[str, WeightData]) -> dict[str, str]:
    """Keep equal orders of one layer once: module → the name of its order.

    So what reads one input in one order, such as queries, keys and values, has it gathered once.
    """
    orders: dict[str, str] = {}
    kept: dict[tuple[str, bytes], str] = {}
    for name in [name for name, weight in tensors.items() if is_order(name, weight)]:
        module = name.removesuffix(SUFFIX)
        layer = ".".join(module.split(".")[:2])
        orders[module] = kept.setdefault((layer, tensors[name].data.tobytes()), name)
        if orders[module] != name:
            del tensors[name]
    return orders
