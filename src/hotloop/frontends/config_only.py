"""Models without weights: a config says enough to build the graph and to predict its time.

`configs/` holds the `config.json` of some well-known models as published, less what says nothing
of their shapes. The tensors have types and no bytes: who reads them gets zeros.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hotloop.frontends.checkpoint_shapes import checkpoint_shapes
from hotloop.frontends.decoder import Decoder
from hotloop.frontends.hf_folder import read_json
from hotloop.frontends.model_file import ModelFile, WeightData
from hotloop.frontends.models import decoder
from hotloop.ir.types import FORMATS, Format, TensorType
from hotloop.util.errors import ModelFileError, UnsupportedError

#: `torch_dtype` → the format that weights are stored in.
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
#: `quantization_config` → the same, where hotloop has it: a scale for each 128 numbers.
_QUANTISED = {"fp8_e4m3": "f8_128"}
#: Formats that no weight is stored in.
_NO_WEIGHTS = ("i32", "i8", "control", "q8")


def bundled() -> tuple[str, ...]:
    """The names of the models whose configs come with hotloop."""
    files = resources.files("hotloop.frontends") / "configs"
    return tuple(sorted(f.name.removesuffix(".json") for f in files.iterdir()))


def open_bundled(name: str, weights: str | None = None) -> Decoder:
    """The bundled model `name`, its matrices stored as `weights` (None: as published)."""
    text = (resources.files("hotloop.frontends") / "configs" / f"{name}.json").read_text("utf-8")
    return _without_weights(Path(name), json.loads(text), weights)


def open_config(path: Path, weights: str | None = None) -> Decoder:
    """The model of a `config.json`; raises `ModelFileError` where that does not describe one."""
    return _without_weights(path, read_json(path), weights)


def open_values(name: str, config: Mapping[str, object], weights: str) -> Decoder:
    """The model of a config's values, its matrices stored as `weights`; all numbers are zero."""
    made = _without_weights(Path(name), config, weights)
    zeros = {
        name: WeightData(weight.name, weight.type, np.zeros(weight.type.nbytes, np.uint8))
        for name, weight in made.tensors.items()
    }
    return replace(made, tensors=zeros)


def _without_weights(path: Path, config: Mapping[str, object], weights: str | None) -> Decoder:
    """The decoder of a config.

    Its family sees bf16, which every adaptation of tensors takes, and what it makes of them gets
    its format afterwards.
    """
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{path} does not name its architecture (model_type).")
    file = ModelFile(path, architecture, MappingProxyType(config), {})
    format = _format(weights or _published_format(file), path)
    shapes = checkpoint_shapes(file)
    tensors = {name: _empty(name, FORMATS["bf16"], shape) for name, shape in shapes.items()}
    made = decoder(replace(file, tensors=MappingProxyType(tensors)))
    only_experts = weights is None and format.name == "mxfp4"  # what gpt-oss stores so
    return replace(
        made,
        tensors={
            name: _empty(name, format, weight.type.shape)
            if len(weight.type.shape) > (2 if only_experts else 1) and not name.endswith(".bias")
            else weight
            for name, weight in made.tensors.items()
        },
    )


def _published_format(file: ModelFile) -> str:
    quantised = file.metadata.get("quantization_config")
    if isinstance(quantised, dict):
        method = str(quantised.get("quant_method"))
        name = f"{method}_{quantised['fmt']}" if "fmt" in quantised else method
        return _QUANTISED.get(name, name)
    dtype = file.optional("torch_dtype", str, "bfloat16")
    return _DTYPES.get(dtype, dtype)


def _format(name: str, path: Path) -> Format:
    format = FORMATS.get(name)
    if format is None or name in _NO_WEIGHTS:
        files = (n for n, f in FORMATS.items() if n not in _NO_WEIGHTS and not f.made_of)
        raise UnsupportedError(
            f"{path} cannot have its weights as {name}, which hotloop does not have; give "
            f"--weights one of {', '.join(files)}."
        )
    return format


def _empty(name: str, format: Format, shape: tuple[int, ...]) -> WeightData:
    """A tensor whose bytes are all the same zero; bf16 where its rows are not whole blocks."""
    type = TensorType(format if shape[-1] % format.block == 0 else FORMATS["bf16"], shape)
    return WeightData(name, type, np.broadcast_to(np.zeros(1, np.uint8), (type.nbytes,)))
