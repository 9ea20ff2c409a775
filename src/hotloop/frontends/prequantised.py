"""Weights of a safetensors file, by the `quantization_config` of its `config.json`."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hotloop.frontends import compressed_tensors, gptq
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.mxfp4 import BLOCKS, SCALES, mxfp4_weight
from hotloop.frontends.stored import PLAIN, Stored
from hotloop.util.errors import ModelFileError, UnsupportedError

#: What the parts of a module are stored as; scales are floats.
_DTYPES = {
    "qweight": ("I32",),
    "qzeros": ("I32",),
    "g_idx": ("I32",),
    "weight_packed": ("I32",),
    "weight": ("I8", "F8_E4M3"),
    "weight_shape": ("I32", "I64"),
    "weight_zero_point": ("I8", "I32"),
    "weight_g_idx": ("I32",),
}
METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "mxfp4")


def weights_of(path: Path, stored: Mapping[str, Stored], config: object) -> dict[str, WeightData]:
    """The weights that the tensors of the file at `path` are, or are the parts of.

    Raises `UnsupportedError` for a method or a layout that hotloop does not read, and
    `ModelFileError` where tensors and config disagree.
    """
    weights: dict[str, WeightData] = {}
    modules: dict[str, dict[str, Stored]] = {}
    if config is not None and not isinstance(config, dict):
        raise ModelFileError(f"{path}: quantization_config is no object; download it again.")
    method = config.get("quant_method") if config else None
    if config and method not in METHODS:
        raise UnsupportedError(
            f"{path} is quantised with {method!r:.40}; hotloop reads {', '.join(METHODS)}: use an "
            "unquantised or a GGUF file."
        )
    if method == "mxfp4":
        return _mxfp4_weights(path, stored)
    grouped = method in ("awq", "gptq")
    parts, ignored = (
        (gptq.PARTS, ()) if grouped else (compressed_tensors.PARTS, compressed_tensors.IGNORED)
    )
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        if config and part in parts and not (part == "weight" and tensor.plain):
            if tensor.dtype not in _DTYPES.get(part, PLAIN):
                raise UnsupportedError(
                    f"{path} stores {tensor}; hotloop reads {', '.join(_DTYPES.get(part, PLAIN))} "
                    "here: use an unquantised or a GGUF file."
                )
            modules.setdefault(module, {})[part] = tensor
        elif tensor.plain and not (config and part in ignored):
            weights[name] = tensor.weight()
        elif not (config and part in ignored):
            raise _unread(path, tensor)
    for module, held in modules.items():
        try:
            if grouped:
                made = gptq.gptq_weights(module, held, config or {})
            else:
                made = compressed_tensors.compressed_weights(module, held)
        except (ModelFileError, UnsupportedError) as error:
            raise type(error)(f"{path}: {error}") from None
        weights.update((weight.name, weight) for weight in made)
    if grouped:
        _drop_zero_biases(weights, modules)
    return weights


def _drop_zero_biases(weights: dict[str, WeightData], modules: Iterable[str]) -> None:
    """AutoGPTQ gives every linear layer a bias, of zeros where the model has none."""
    alike: dict[str, list[str]] = {}  # of all layers, so that these stay alike
    for module in modules:
        if f"{module}.bias" in weights:
            alike.setdefault(module.rpartition(".")[2], []).append(f"{module}.bias")
    for biases in alike.values():
        if not any(weights[name].data.any() for name in biases):
            for name in biases:
                del weights[name]


def _mxfp4_weights(path: Path, stored: Mapping[str, Stored]) -> dict[str, WeightData]:
    """Blocks and scales in pairs; everything else is plain."""
    weights: dict[str, WeightData] = {}
    for name, tensor in stored.items():
        module = name.removesuffix(BLOCKS).removesuffix(SCALES)
        if tensor.plain:
            weights[name] = tensor.weight()
        elif tensor.dtype != "U8" or module == name:
            raise _unread(path, tensor)
        elif module not in weights:
            try:
                parts = stored.get(module + BLOCKS), stored.get(module + SCALES)
                weights[module] = mxfp4_weight(module, *parts)
            except ModelFileError as error:
                raise ModelFileError(f"{path}: {error}") from None
    return weights


def _unread(path: Path, tensor: Stored) -> UnsupportedError:
    return UnsupportedError(
        f"{path} stores tensor {tensor.name!r:.80} as {tensor.dtype}; hotloop reads "
        f"{', '.join(PLAIN)} here: use a file in one of these, or a GGUF file."
    )
