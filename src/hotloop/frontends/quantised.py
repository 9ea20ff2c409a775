"""Quantising at load: the matrices of an unquantised model in a format with fewer bits.

Vectors stay as they are, and so do the routers of experts, whose few numbers decide what is
computed at all. The LM head, which is the embedding where the two are tied, gets 8 bits at least:
its errors go straight into the logits. (llama.cpp does the same, with 6 bits for the head.)
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hotloop.frontends.decoder import Decoder
from hotloop.frontends.model_file import WeightData
from hotloop.ir.encode import encode
from hotloop.ir.formats import dequantise
from hotloop.ir.types import FORMATS, TensorType
from hotloop.util.errors import UsageError

_KEPT = ("ffn_gate_inp.weight",)
HEAD = "q8_0"


def quantised(decoder: Decoder, format_name: str) -> Decoder:
    """The same model with its f32, f16 and bf16 matrices as `format_name` of `ir.encode.ENCODED`.

    A matrix is rounded when somebody asks for its data. Raises `UsageError` for a model that has
    no such matrix.
    """
    stored = decoder.tensors.items()
    head = f"{decoder.head_weight}.weight"
    tensors = {
        name: _encoded(name, weight, HEAD if name == head else format_name)
        for name, weight in stored
    }
    if all(tensors[name] is weight for name, weight in stored):
        raise UsageError(
            f"{decoder.file.path} has no f32, f16 or bf16 matrix to quantise; load it as it is."
        )
    return replace(decoder, tensors=tensors, quantised=format_name)


def _encoded(name: str, weight: WeightData, format_name: str) -> WeightData:
    format, shape = FORMATS[format_name], weight.type.shape
    if weight.type.format.quantised or len(shape) < 2 or shape[-1] % format.block:
        return weight
    if name.endswith(_KEPT):
        return weight

    def make() -> NDArray[np.uint8]:
        return encode(dequantise(weight.data, weight.type), format_name)

    return WeightData(name, TensorType(format, shape), make, (weight,))
