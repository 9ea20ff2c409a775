"""From a model file to a graph: configs in both dialects, and files that lie."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from conftest import DATA
from safetensors.numpy import load_file, save_file

from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.gguf import read_gguf
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.models import decoder
from hotloop.ir.verify import verify
from hotloop.util.errors import HotloopError, ModelFileError, UnsupportedError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny llama, to break."""
    return Path(shutil.copytree(DATA / "tiny" / "llama", tmp_path / "llama"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            del config[key]
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def change_weights(folder: Path, **changes: np.ndarray | None) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    for key, value in changes.items():
        if value is None:
            del weights[key]
        else:
            weights[key] = value
    save_file(weights, path)


def open_folder(folder: Path) -> Decoder:
    return decoder(read_hf_folder(folder))


def test_the_older_layout_of_config_gives_the_same_model(folder: Path) -> None:
    """Most published checkpoints have rope_theta beside rope_scaling, and torch_dtype."""
    for name in ("llama", "llama3_rope"):
        source = Path(shutil.copytree(DATA / "tiny" / name, folder / name))
        before = open_folder(source).config
        rope = json.loads((source / "config.json").read_text())["rope_parameters"]
        theta = rope.pop("rope_theta")
        scaling = None if rope["rope_type"] == "default" else rope
        change_config(
            source,
            rope_parameters=...,
            rope_theta=theta,
            rope_scaling=scaling,
            dtype=...,
            torch_dtype="float32",
        )
        assert open_folder(source).config == before
        if scaling:
            scaling["type"] = scaling.pop("rope_type")
            change_config(source, rope_scaling=scaling)
            assert open_folder(source).config == before


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("activations", ["q8", "f32"])
def test_graphs_verify(tiny: Path, tokens: int, activations: str) -> None:
    model = open_folder(tiny)
    verify(model.graph(Step(tokens, 40, activations, head=tokens == 1)))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"model_type": "mamba"},
            UnsupportedError,
            "'mamba' model, which hotloop does not run; the",
        ),
        ({"model_type": "qwen9"}, UnsupportedError, r"nearest that it does is qwen\d\."),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act is 'gelu', not 'silu'"),
        (
            {"attention_bias": True},
            ModelFileError,
            "attention_bias is True, but lacks the tensor blk.0",
        ),
        (
            {"mlp_bias": True},
            ModelFileError,
            "mlp_bias is True, but lacks the tensor blk.0.ffn_down",
        ),
        ({"num_hidden_layers": ...}, ModelFileError, "does not say num_hidden_layers"),
        ({"num_hidden_layers": 4}, ModelFileError, "no tensor blk.3.attn_norm.weight"),
        ({"num_hidden_layers": 2}, UnsupportedError, r"holds the tensor model\.layers\.2"),
        ({"hidden_size": 32}, ModelFileError, "token_embd.weight is f32"),
        ({"num_attention_heads": 2}, ModelFileError, "attn_q.weight is f32"),
        ({"vocab_size": 130}, ModelFileError, "token_embd.weight is f32"),
        ({"rope_parameters": {"rope_type": "warp", "factor": 2.0}}, UnsupportedError, "'warp'"),
        ({"rope_parameters": {"rope_theta": 0.5}}, ModelFileError, "base is 0.5"),
        ({"rope_parameters": {"rope_type": "yarn"}}, ModelFileError, "a positive factor"),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            ModelFileError,
            "8 positive numbers in short",
        ),
        ({"partial_rotary_factor": 0.0}, ModelFileError, "turns 0 elements of heads of 16"),
        ({"partial_rotary_factor": 9.0}, ModelFileError, "turns 144 elements of heads of 16"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelFileError, "needs a positive factor"),
        ({"num_attention_heads": 0}, ModelFileError, "heads = 0"),
        ({"num_hidden_layers": 0}, ModelFileError, "layers = 0"),
        ({"num_key_value_heads": 3}, ModelFileError, "over 3 key-value heads"),
        ({"head_dim": 15}, ModelFileError, "heads of 15"),
        ({"rms_norm_eps": "small"}, ModelFileError, "rms_norm_eps"),
    ],
)
def test_configs_that_lie(
    folder: Path, changes: dict[str, Any], error: type[HotloopError], words: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(error, match=words):
        open_folder(folder).graph(Step(context=16))


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ModelFileError, match=r"no tensor blk.1.ffn_up.weight"):
        open_folder(folder).graph(Step(context=16))


def test_a_head_that_is_not_tied_must_be_there(folder: Path) -> None:
    change_weights(folder, **{"lm_head.weight": None})
    with pytest.raises(ModelFileError, match=r"no tensor output.weight"):
        open_folder(folder)


def test_a_tensor_of_the_wrong_shape_is_named(folder: Path) -> None:
    change_weights(folder, **{"model.norm.weight": np.ones(63, np.float32)})
    with pytest.raises(ModelFileError, match=r"output_norm.weight is f32\[63\].* \[64\]"):
        open_folder(folder).graph(Step(context=16))


def test_an_extra_tensor_is_refused(folder: Path) -> None:
    """A tensor that nobody reads is a model that hotloop would compute wrongly."""
    change_weights(folder, **{"model.layers.0.input_layernorm.bias": np.zeros(64, np.float32)})
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_norm\.bias"):
        open_folder(folder)


def test_a_bias_that_the_config_denies_is_refused(folder: Path) -> None:
    change_weights(folder, **{"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)})
    with pytest.raises(
        ModelFileError, match=r"attention_bias is False, but holds the tensor blk\.0"
    ):
        open_folder(folder)


def test_what_is_no_weight_is_not_missed(folder: Path) -> None:
    """Old checkpoints hold the frequencies of RoPE."""
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(folder, **{name: np.zeros(8, np.float32)})
    open_folder(folder)


def test_rope_table_starts_at_angle_zero(folder: Path) -> None:
    config = open_folder(folder).config
    table = config.ropes[0].table(10)
    assert table.shape == (10, config.head_dim)
    half = config.head_dim // 2
    assert (table[0, :half] == 1).all()
    assert (table[0, half:] == 0).all()
    np.testing.assert_allclose(table[7, 0], np.cos(7.0), rtol=1e-6)
    np.testing.assert_allclose(table[:, :half] ** 2 + table[:, half:] ** 2, 1, rtol=1e-5)


def write_gguf(path: Path, **changes: Any) -> Path:
    """A GGUF llama of one layer, with metadata or tensors changed."""
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    numbers = {
        "block_count": 1,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 2,
        "context_length": 64,
        **{key: value for key, value in changes.items() if not key.startswith("blk")},
    }
    for key, value in numbers.items():
        if value is not None:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    shapes = {
        "token_embd": (96, 32),
        "output_norm": (32,),
        **{f"blk.0.{n}": (32, 32) for n in ("attn_q", "attn_k", "attn_v", "attn_output")},
        **{f"blk.0.{n}": (32,) for n in ("attn_norm", "ffn_norm")},
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    shapes |= {key: value for key, value in changes.items() if key.startswith("blk")}
    for name, shape in shapes.items():
        if shape is not None:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_small_gguf(tmp_path: Path) -> None:
    model = decoder(read_gguf(write_gguf(tmp_path / "m.gguf")))
    assert model.head_weight == "token_embd"  # tied
    assert model.config.kv_heads == 2
    verify(model.graph(Step(context=16)))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"architecture": "qwen9"}, UnsupportedError, "'qwen9' model, which hotloop does not run"),
        ({"block_count": None}, ModelFileError, "does not say llama.block_count"),
        ({"block_count": 2}, ModelFileError, "no tensor blk.1.attn_norm.weight"),
        ({"block_count": 1 << 31}, ModelFileError, "2147483648 layers"),
        ({"attention.head_count": 0}, ModelFileError, "heads = 0"),
        ({"attention.head_count": 5}, ModelFileError, "attn_q.weight is f32"),
        ({"rope.dimension_count": 18}, ModelFileError, "turns 18 elements of heads of 16"),
        ({"rope.dimension_count": 7}, ModelFileError, "turns 7 elements of heads of 16"),
        ({"context_length": 0}, ModelFileError, "context = 0"),
        ({"blk.0.ffn_down": (32, 32)}, ModelFileError, r"ffn_down.weight is f32\[32,32\]"),
        ({"blk.0.ffn_down": None}, ModelFileError, "no tensor blk.0.ffn_down.weight"),
        ({"blk.0.ffn_gate": None}, ModelFileError, "no tensor blk.0.ffn_gate.weight"),
        ({"blk.0.attn_norm.bias": (32,)}, UnsupportedError, r"blk\.0\.attn_norm\.bias"),
        ({"blk.1.ffn_up": (64, 32)}, UnsupportedError, r"blk\.1\.ffn_up"),
    ],
)
def test_gguf_files_that_lie(
    tmp_path: Path, changes: dict[str, Any], error: type[HotloopError], words: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(error, match=words):
        decoder(read_gguf(path)).graph(Step(context=16))


def test_released_weights_can_be_read_again(tmp_path: Path) -> None:
    """Their pages are gone from memory, not from the file; neighbours are not touched."""
    model = decoder(read_gguf(write_gguf(tmp_path / "m.gguf", **{"blk.0.ffn_down": (32, 64)})))
    before = {name: weight.data.copy() for name, weight in model.tensors.items()}
    for name in [*model.tensors, "rope.table"]:
        model.release(name)
    assert all((before[name] == weight.data).all() for name, weight in model.tensors.items())


def test_data_that_is_no_map_stays(folder: Path) -> None:
    model = open_folder(folder)
    table = model.weight("rope.table", Step(context=64))
    copy = table.data.copy()
    table.release()
    assert (table.data == copy).all()
