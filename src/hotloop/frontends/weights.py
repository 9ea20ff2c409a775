"""Weights made of stored ones: parts of a tensor, several joined, or the same in another order.

A row's bytes are contiguous in every format, so whole rows can be taken without knowing it.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.column_order import SUFFIX, is_order
from hotloop.frontends.model_file import WeightData
from hotloop.ir.formats import dequantise
from hotloop.ir.types import TensorType, tensor
from hotloop.util.errors import ModelFileError

Tensors = MutableMapping[str, WeightData]


def split_rows(tensors: Tensors, fused: str, parts: Mapping[str, int]) -> None:
    """Replace the tensor `fused`, where there is one, by views of its rows: name → how many."""
    weight = tensors.pop(fused, None)
    if weight is None:
        return
    if sum(parts.values()) != weight.type.shape[0]:
        raise ModelFileError(
            f"tensor {fused} is {weight.type}, but the model's numbers ask for "
            f"{sum(parts.values())} rows; the file is damaged, download it again."
        )
    order = tensors.pop(_order(fused), None)
    row_bytes, start = weight.type.nbytes // weight.type.shape[0], 0
    for name, rows in parts.items():
        type = TensorType(weight.type.format, (rows, *weight.type.shape[1:]))
        piece = slice(start, start + rows * row_bytes)
        if callable(weight.stored):
            tensors[name] = WeightData(name, type, partial(_piece, weight, piece), (weight,))
        else:
            tensors[name] = WeightData(name, type, weight.stored[piece])
        if order is not None:
            tensors[_order(name)] = replace(order, name=_order(name))
        start = piece.stop


def _order(weight: str) -> str:
    """What the order of a weight's columns is called."""
    return f"{weight.removesuffix('.weight')}{SUFFIX}"


def _piece(weight: WeightData, piece: slice) -> NDArray[np.uint8]:
    return weight.data[piece]


def take_rows(weight: WeightData, rows: Sequence[int]) -> WeightData:
    """The rows of these numbers, in this order; zeros for a number below 0.

    Bytes of zeros are zeros in every format.
    """
    shape = (len(rows), *weight.type.shape[1:])

    def take() -> NDArray[np.uint8]:
        numbers = np.asarray(rows)
        taken: NDArray[np.uint8] = weight.data.reshape(weight.type.shape[0], -1)[numbers]
        taken[numbers < 0] = 0
        return taken.reshape(-1)

    return WeightData(weight.name, TensorType(weight.type.format, shape), take, (weight,))


def fold_orders(tensors: Tensors, layers: int) -> None:
    """Rows of gate and up in the order of down's columns, which then is nothing to gather by.

    What lies between is computed for each element by itself, in every family.
    """
    for i in range(layers):
        for net in ("", "_shexp"):
            order = tensors.get(down := f"blk.{i}.ffn_down{net}{SUFFIX}")
            if order is None or not is_order(down, order):
                continue
            del tensors[down]
            rows = order.data.view(np.int32).tolist()
            for part in ("gate", "up"):
                for kind in ("weight", "bias"):
                    weight = tensors.get(name := f"blk.{i}.ffn_{part}{net}.{kind}")
                    if weight is not None and len(rows) == weight.type.shape[0]:
                        tensors[name] = take_rows(weight, rows)


def changed(
    weight: WeightData, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> WeightData:
    """A vector with its numbers changed."""

    def make() -> NDArray[np.uint8]:
        values = change(dequantise(weight.data, weight.type)).astype(np.float32)
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1)

    return WeightData(weight.name, tensor("f32", *weight.type.shape), make, (weight,))


def add_one_to_norms(tensors: Tensors, config: object, gguf: bool) -> None:
    """Gemma's norms multiply by 1 + weight; GGUF's converter has added the 1 already."""
    for name in [] if gguf else list(tensors):
        if name.endswith("norm.weight"):
            tensors[name] = changed(tensors[name], lambda values: values + np.float32(1))


def as_matrix(tensors: Tensors, name: str) -> None:
    """Give the tensor, where it is a vector, one row."""
    weight = tensors.get(name)
    if weight is not None and len(weight.type.shape) == 1:
        type = TensorType(weight.type.format, (1, *weight.type.shape))
        tensors[name] = WeightData(name, type, weight.stored, weight.made_of)


def columns_of(weight: WeightData, name: str, columns: slice) -> WeightData:
    """Some columns of a plain matrix, as float32."""
    rows, count = weight.type.shape
    shape = (rows, len(range(*columns.indices(count))))

    def take() -> NDArray[np.uint8]:
        values = dequantise(weight.data, weight.type)[:, columns]
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1)

    return WeightData(name, tensor("f32", *shape), take, (weight,))


def joined_heads(tensors: Tensors, layer: str) -> None:
    """Latent attention's newer tensors, a key matrix transposed and a value matrix for each head.

    They become the older one, `attn_kv_b`, with the rows of a head's keys, then its values.
    """
    k, v = (tensors.pop(f"{layer}.attn_{part}_b.weight") for part in ("k", "v"))
    heads, rank, plain = k.type.shape
    shape = (heads * (plain + v.type.shape[1]), rank)

    def join() -> NDArray[np.uint8]:
        keys = dequantise(k.data, k.type).transpose(0, 2, 1)
        both = np.concatenate([keys, dequantise(v.data, v.type)], axis=1)
        return np.ascontiguousarray(both).view(np.uint8).reshape(-1)

    name = f"{layer}.attn_kv_b.weight"
    tensors[name] = WeightData(name, tensor("f32", *shape), join, (k, v))
