"""Opening a model, whichever format it is in."""

from pathlib import Path

from hotloop.frontends.gguf import read_gguf
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.model_file import ModelFile


def open_model(path: Path) -> ModelFile:
    """A folder is read as Hugging Face's, a file as GGUF."""
    return read_hf_folder(path) if path.is_dir() else read_gguf(path)
