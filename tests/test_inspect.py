"""hotloop inspect: what is in a file, also in one that cannot be run."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import DATA
from shell import Shell

from hotloop.frontends.decoder import Step
from hotloop.frontends.inventory import take_inventory
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.passes.lower import lower
from hotloop.report.counts import traffic
from hotloop.report.inspection import Inspection, inspect
from hotloop.util.errors import ModelFileError

TINY = DATA / "tiny" / "llama"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A mixture of experts by nobody, in formats that may not be known, and names that hurt."""
    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "nobodys")
    writer.add_uint32("nobodys.expert_count", 8)
    writer.add_uint32("nobodys.expert_used_count", 2)
    writer.add_string("key\x1b[31m", "value\x1b[0m")
    kinds = gguf.GGMLQuantizationType
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), np.float32))
    writer.add_tensor("output.weight", np.zeros((10, 64), np.float16))
    # Nobody quantises like this: only the sizes must fit.
    block_bytes = gguf.GGML_QUANT_SIZES[kinds.IQ1_M][1]
    writer.add_tensor(
        "blk.0.ffn_up_exps.weight",
        np.zeros((8, 3, block_bytes), np.uint8),
        raw_dtype=kinds.IQ1_M,
    )
    writer.add_tensor("blk.1.a\x1b[31m.weight", np.zeros(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_bytes_per_token_are_those_of_the_program(default_model: Path) -> None:
    """What names and shapes say is what a walk over all calls counts, but for the RoPE table."""
    for path in (default_model, TINY, DATA / "tiny" / "llama_tied"):
        model = decoder(open_model(path))
        counted = dict(traffic(lower(model.graph(Step()))).weights)
        counted["f32"] -= model.config.layers * 2 * model.config.head_dim * 4
        assert inspect(path).per_token == counted


def test_a_file_that_runs(default_model: Path) -> None:
    inspection = inspect(default_model)
    assert inspection.obstacle == ""
    assert inspection.inventory.parameters == 134_515_008
    assert inspection.text is not None
    assert (inspection.text.tokens, inspection.text.bos) == (49152, None)
    assert inspection.text.stops == ("<|endoftext|>", "<|im_end|>")
    down = next(g for g in inspection.groups if g.name == "blk.N.ffn_down.weight")
    assert (down.layers, len(down.tensors), down.tensors[0].format) == ("0–29", 30, "q4_1")


def test_inventory_equals_the_oracle(default_model: Path) -> None:
    ours = {tensor.name: tensor for tensor in take_inventory(default_model).tensors}
    for theirs in gguf.GGUFReader(default_model).tensors:
        assert ours[theirs.name].shape == tuple(theirs.shape[::-1].tolist())
        assert ours[theirs.name].nbytes == theirs.n_bytes
        assert ours[theirs.name].format == theirs.tensor_type.name.lower()


def test_a_file_that_cannot_run_is_shown_with_the_reason(strange: Path) -> None:
    inspection: Inspection = inspect(strange)
    assert "hotloop" in inspection.obstacle
    experts = next(t for t in inspection.inventory.tensors if "exps" in t.name)
    assert (experts.format, experts.shape) == ("iq1_m", (8, 3, 256))
    size = 8 * 3 * gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.IQ1_M][1]
    assert size <= experts.nbytes < size + 32  # up to the next tensor, which is aligned
    # A row of the embedding and the small vector; the whole head; two experts of eight.
    assert inspection.per_token["f32"] == 64 * 4 + 3 * 4
    assert inspection.per_token["f16"] == 10 * 64 * 2
    assert inspection.per_token["iq1_m"] == experts.nbytes // 4


def test_as_tables_and_as_json(strange: Path, shell: Shell) -> None:
    assert shell("inspect", str(strange)) == 0
    assert "does not run: " in shell.out
    assert "\x1b" not in shell.out
    assert "blk.N.ffn_up_exps.weight" in shell.out
    assert shell("inspect", str(TINY), "--json") == 0
    values = json.loads(shell.out)
    assert (values["runs"], values["architecture"], values["tokenizer"]) == (True, "llama", None)
    assert values["bytes_per_token"]["f32"] == 330_496
    assert {"name", "format", "shape", "nbytes"} == set(values["tensors"][0])


def test_what_is_no_model_is_an_error(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="past the end"):
        take_inventory(tmp_path / "x.gguf")
    with pytest.raises(ModelFileError, match=r"config\.json does not exist"):
        take_inventory(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ModelFileError, match=r"model\.safetensors is damaged"):
        take_inventory(tmp_path)
    assert shell("inspect", str(tmp_path)) == 3
