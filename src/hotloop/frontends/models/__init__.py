"""The families: one short file each, which exports a `FAMILY` with its architectures' names.

A new file is found by itself. Nothing is imported before a model is opened.
"""

import difflib
import importlib
import pkgutil
from reprlib import repr as brief  # what a file says may be long

from hotloop.frontends.decoder import Decoder, Family
from hotloop.frontends.model_file import ModelFile
from hotloop.frontends.quantised import quantised
from hotloop.util.errors import UnsupportedError


def families() -> dict[str, Family]:
    """Architecture name (GGUF's `general.architecture`, Hugging Face's `model_type`) → family."""
    modules = [
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    ]
    return {name: module.FAMILY for module in modules for name in module.FAMILY.names}


def decoder(file: ModelFile) -> Decoder:
    """The model in `file`; raises `UnsupportedError` for an architecture hotloop does not know."""
    known = families()
    if file.architecture not in known:
        near = difflib.get_close_matches(file.architecture[:100], known, 1, cutoff=0.0)
        raise UnsupportedError(
            f"{file.path} is a {brief(file.architecture)} model, which hotloop does not run; the "
            f"nearest that it does is {near[0]}. All: {', '.join(sorted(known))}."
        )
    made = Decoder.of(file, known[file.architecture])
    return made if file.quantised is None else quantised(made, file.quantised)
