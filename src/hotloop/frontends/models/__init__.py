"""The families: one short file each, found by architecture name."""

import importlib

from hotloop.frontends.decoder import Decoder
from hotloop.frontends.model_file import ModelFile
from hotloop.util.errors import UnsupportedError

#: Architecture name (GGUF's `general.architecture`, Hugging Face's `model_type`) → module.
FAMILIES = {"llama": "llama"}


def decoder(file: ModelFile) -> Decoder:
    """The model in `file`; raises `UnsupportedError` for an architecture hotloop does not know."""
    if file.architecture not in FAMILIES:
        raise UnsupportedError(
            f"{file.path} is a {file.architecture!r} model; hotloop runs {', '.join(FAMILIES)}."
        )
    family = importlib.import_module(f"hotloop.frontends.models.{FAMILIES[file.architecture]}")
    return Decoder.of(file, family.FAMILY)
