"""Every family against independent engines, in all dialects, on every rung."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from gguf_models import write

from hotloop import Model, load
from hotloop.backends.cpu import jit
from hotloop.compiler import SCHEDULES
from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.gguf import read_gguf
from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.model_file import WeightData
from hotloop.frontends.models import decoder
from hotloop.ir.formats import dequantise
from hotloop.ir.interp import run_graph
from hotloop.ir.types import tensor
from hotloop.util.errors import ModelFileError

LONGROPE = "phi3_longrope"
FAMILIES = sorted(
    path.name for path in (DATA / "tiny").iterdir() if path.is_dir() and path.name != LONGROPE
)
Case = dict[str, Any]


def cases(name: str) -> list[Case]:
    return json.loads((DATA / "tiny" / name / "reference.json").read_text())["cases"]


def answers(model: Model, cases: list[Case]) -> tuple[bytes, list[list[int]]]:
    """The logits after each case, and what greedy decoding adds; both must be the reference's."""
    logits = [model.logits(case["input_ids"])[-1] for case in cases]
    greedy = [[t.id for t in model.generate(case["input_ids"], 24)] for case in cases]
    for case, found in zip(cases, logits, strict=True):
        np.testing.assert_allclose(found, case["logits_last"], rtol=0, atol=5e-4)
    assert greedy == [case["greedy_ids"] for case in cases]
    return np.concatenate(logits).tobytes(), greedy


@pytest.mark.parametrize("name", FAMILIES)
def test_every_rung_gives_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the ladder as they are, the rungs between them without LLVM's optimisations.

    Which are most of a rung's time, and must not change a bit.
    """
    bottom, *middle, top = SCHEDULES
    with load(DATA / "tiny" / name, 2, bottom, "f32", context=96) as model:
        expected = answers(model, cases(name))
        assert answers(model.with_schedule(top), cases(name)) == expected, top
        monkeypatch.setattr(jit, "OPTIMISATION", 0)
        for schedule in middle:
            assert answers(model.with_schedule(schedule), cases(name)) == expected, schedule


def test_longrope_has_other_angles_for_long_contexts() -> None:
    """Up to 40 positions and beyond; transformers looks at what is there, hotloop at the limit."""
    *short, long = cases(LONGROPE)
    for context, some in ((40, short), (96, [long])):
        with load(DATA / "tiny" / LONGROPE, 2, activations="f32", context=context) as model:
            answers(model, some)


# GGUF: what its files don't say is written besides, where the tiny model is unlike all real ones

BESIDES: dict[str, dict[str, Any]] = {
    "gemma2": {"attention.scale": 24**-0.5},
    "gemma3_text": {"attention.scale": 20**-0.5},
}


def meant(model: Decoder, ids: list[int]) -> np.ndarray:
    """The logits of all tokens at once by the NumPy meaning of the model's graph."""
    step = Step(tokens=len(ids), context=64, activations="f32")
    graph = model.graph(step)
    values: dict[str, np.ndarray] = {
        "token": np.array(ids, np.int32),
        "pos": np.zeros(1, np.int32),
        "pages": np.zeros((1, 1), np.int32),
    }
    for weight in graph.weights:
        stored = model.weight(weight.name, step)
        values[weight.name] = dequantise(stored.data, stored.type)
    for state in graph.states:
        values[state.name] = np.full(state.type.shape, np.nan, state.type.format.numpy)
    return run_graph(graph, values)[graph.outputs[0]]


@pytest.mark.parametrize("name", [*FAMILIES, LONGROPE])
def test_a_gguf_file_gives_the_same(name: str, tmp_path: Path) -> None:
    """By the graph's meaning: that one, and the machine code, are the same for all files."""
    model = decoder(read_gguf(write(name, tmp_path / "model.gguf", BESIDES.get(name))))
    case = cases(name)[-1]
    found = meant(model, case["input_ids"])
    np.testing.assert_allclose(found[-1], case["logits_last"], rtol=0, atol=5e-4)
    assert found.argmax(-1).tolist() == case["argmax"]


def test_older_files_of_phi_have_queries_keys_and_values_in_one(tmp_path: Path) -> None:
    file = read_gguf(write("phi", tmp_path / "model.gguf"))
    tensors = dict(file.tensors)
    for i in range(3):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{i}.attn_{part}.{kind}") for part in "qkv"]
            type = tensor("f32", 96, *parts[0].type.shape[1:])
            name, data = f"blk.{i}.attn_qkv.{kind}", np.concatenate([p.data for p in parts])
            tensors[name] = WeightData(name, type, data)
    fused, apart = decoder(replace(file, tensors=tensors)), decoder(file)
    assert fused.tensors.keys() == apart.tensors.keys()
    for name, weight in fused.tensors.items():
        assert weight.type == apart.tensors[name].type
        assert weight.data.tobytes() == apart.tensors[name].data.tobytes()


# config.json in the layout of most published checkpoints


def older(config: dict[str, Any]) -> dict[str, Any]:
    """The config as transformers 4 wrote it, and as most published ones are."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    types = config.pop("layer_types", [])
    if config["model_type"] in ("gemma3_text", "cohere2"):
        config.pop("_sliding_window_pattern", None)
        config["sliding_window_pattern"] = types.index("full_attention") + 1
    if config["model_type"] == "exaone4":
        config["sliding_window_pattern"] = "LLLG"
    if config["model_type"] == "exaone":
        config["num_layers"] = config.pop("num_hidden_layers")
        config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
        config["activation_function"] = config.pop("hidden_act")
    rope = config.pop("rope_parameters")
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    rope = dict(rope)
    theta, share = rope.pop("rope_theta"), rope.pop("partial_rotary_factor", None)
    neox = config["model_type"] == "gpt_neox"
    config["rotary_emb_base" if neox else "rope_theta"] = theta
    if share is not None:
        config["rotary_pct" if neox else "partial_rotary_factor"] = share
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return config


def opened(config: dict[str, Any], name: str, folder: Path) -> Decoder:
    (folder / "config.json").write_text(json.dumps(config))
    if not (folder / "model.safetensors").exists():
        (folder / "model.safetensors").symlink_to(DATA / "tiny" / name / "model.safetensors")
    return decoder(read_hf_folder(folder))


@pytest.mark.parametrize("name", [*FAMILIES, LONGROPE])
def test_the_older_layout_of_config_gives_the_same_model(name: str, tmp_path: Path) -> None:
    """Most published checkpoints have rope_theta beside rope_scaling, and torch_dtype."""
    config = json.loads((DATA / "tiny" / name / "config.json").read_text())
    expected = opened(config, name, tmp_path).config
    before = older(config)
    assert opened(before, name, tmp_path).config == expected
    if before["rope_scaling"]:
        before["rope_scaling"]["type"] = before["rope_scaling"].pop("rope_type")
        assert opened(before, name, tmp_path).config == expected


@pytest.mark.parametrize("alpha", ["x", -1.0, 1e300, [2]])
def test_hunyuan_stretches_by_a_number(alpha: object, tmp_path: Path) -> None:
    name = "hunyuan_v1_dense"
    config = json.loads((DATA / "tiny" / name / "config.json").read_text())
    config["rope_parameters"]["alpha"] = alpha
    with pytest.raises(ModelFileError, match="RoPE's alpha is"):
        opened(config, name, tmp_path)
    config["rope_parameters"]["alpha"] = None
    ropes = opened(config, name, tmp_path).config.ropes
    assert ropes[0].frequencies[1] == 10000 ** (-2 / 12)
