"""Split GGUF as the `gguf` package splits it; and files that do not belong together."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from hotloop.frontends.gguf import read_gguf
from hotloop.util.errors import ModelFileError

NAMES = [f"blk.{i}.weight" for i in range(7)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Seven tensors in three files."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=3)
    writer.add_uint32("llama.block_count", 7)
    for i, name in enumerate(NAMES):
        writer.add_tensor(name, np.full((2, 8), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("*.gguf"))


def test_every_file_opens_the_whole_model(files: list[Path]) -> None:
    assert [path.name for path in files] == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for path in files:
        model = read_gguf(path)
        assert model.path == path
        assert model.require("llama.block_count", int) == 7
        assert list(model.tensors) == NAMES
        for i, name in enumerate(NAMES):
            assert (model.tensors[name].data.view(np.float32) == i).all()


def test_missing_files_are_named(files: list[Path]) -> None:
    files[0].unlink()
    with pytest.raises(ModelFileError, match=r"m-00001-of-00003\.gguf is missing; download"):
        read_gguf(files[1])
    files[2].unlink()
    with pytest.raises(ModelFileError, match=r"m-00001-of-00003\.gguf and 1 more is missing"):
        read_gguf(files[1])


@pytest.mark.parametrize(
    "name", ["model.gguf", "m-00002-of-00004.gguf", "m-00000-of-00003.gguf", "m-2-of-3.gguf"]
)
def test_files_keep_their_names(files: list[Path], name: str) -> None:
    moved = files[1].rename(files[1].with_name(name))
    with pytest.raises(ModelFileError, match=r"must be called NAME-00001-of-00003\.gguf and so on"):
        read_gguf(moved)


def test_files_of_other_models_are_refused(files: list[Path], tmp_path: Path) -> None:
    shutil.copy(files[1], files[2])
    with pytest.raises(ModelFileError, match=r"says that it is file 1 \(from 0\) of 3, not 2 of 3"):
        read_gguf(files[0])


def test_the_number_of_tensors_must_agree(files: list[Path]) -> None:
    content = files[0].read_bytes()
    key = b"split.tensors.count"
    at = content.index(key) + len(key) + 4
    files[0].write_bytes(content[:at] + bytes([9]) + content[at + 1 :])
    with pytest.raises(ModelFileError, match="hold 7 tensors, not 9"):
        read_gguf(files[0])
