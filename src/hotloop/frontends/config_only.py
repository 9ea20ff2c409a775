"""Models without weights: a config says enough to build the graph and to predict its time.

`configs/` holds the `config.json` of some well-known models as published, less what says nothing
of their shapes. The tensors have types and no bytes: who reads them gets zeros.
"""

import json
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hotloop.frontends.checkpoint_shapes import checkpoint_shapes
from hotloop.frontends.hf_folder import read_json
from hotloop.frontends.model_file import ModelFile, WeightData
from hotloop.ir.types import FORMATS, Format, TensorType
from hotloop.util.errors import ModelFileError, UnsupportedError

#: `torch_dtype` → the format that weights are stored in.
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def bundled() -> tuple[str, ...]:
    """The names of the models whose configs come with hotloop."""
    files = resources.files("hotloop.frontends") / "configs"
    return tuple(sorted(f.name.removesuffix(".json") for f in files.iterdir()))


def open_bundled(name: str, weights: str | None = None) -> ModelFile:
    """The bundled model `name`, its matrices stored as `weights` (None: as published)."""
    text = (resources.files("hotloop.frontends") / "configs" / f"{name}.json").read_text("utf-8")
    return _without_weights(Path(name), json.loads(text), weights)


def open_config(path: Path, weights: str | None = None) -> ModelFile:
    """The model of a `config.json`; raises `ModelFileError` where that does not describe one."""
    return _without_weights(path, read_json(path), weights)


def _without_weights(path: Path, config: dict[str, object], weights: str | None) -> ModelFile:
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{path} does not name its architecture (model_type).")
    file = ModelFile(path, architecture, MappingProxyType(config), {})
    matrices = _format(weights or _published_format(file), path)
    tensors = {
        name: _empty(name, matrices if len(shape) > 1 else FORMATS["f32"], shape)
        for name, shape in checkpoint_shapes(file).items()
    }
    return ModelFile(path, architecture, file.metadata, MappingProxyType(tensors))


def _published_format(file: ModelFile) -> str:
    quantised = file.metadata.get("quantization_config")
    if isinstance(quantised, dict):
        method = str(quantised.get("quant_method"))
        return f"{method}_{quantised['fmt']}" if "fmt" in quantised else method
    dtype = file.optional("torch_dtype", str, "bfloat16")
    return _DTYPES.get(dtype, dtype)


def _format(name: str, path: Path) -> Format:
    format = FORMATS.get(name)
    if format is None or name in ("i32", "control", "q8"):
        known = ", ".join(n for n in FORMATS if n not in ("i32", "control", "q8"))
        raise UnsupportedError(
            f"{path} stores its weights as {name}, which hotloop does not have; predict it with "
            f"another format, --weights {known}."
        )
    return format


def _empty(name: str, format: Format, shape: tuple[int, ...]) -> WeightData:
    """A tensor whose bytes are all the same zero."""
    if shape[-1] % format.block:
        format = FORMATS["bf16"]
    type = TensorType(format, shape)
    return WeightData(name, type, np.broadcast_to(np.zeros(1, np.uint8), (type.nbytes,)))
