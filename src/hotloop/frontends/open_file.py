"""Opening a model, whichever format it is in."""

from pathlib import Path

from hotloop.frontends.gguf import read_gguf
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.model_file import ModelFile
from hotloop.frontends.packed_file import is_packed_file, read_packed_file


def open_model(path: Path) -> ModelFile:
    """A folder is read as Hugging Face's, a file by its first bytes as packed, else as GGUF."""
    if path.is_dir():
        return read_hf_folder(path)
    return read_packed_file(path) if is_packed_file(path) else read_gguf(path)
