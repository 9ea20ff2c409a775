"""hotloop predict: models without weights, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.main import main
from hotloop.frontends.config_only import bundled, open_bundled
from hotloop.frontends.decoder import Step
from hotloop.ir.program import calls
from hotloop.machine.load import find
from hotloop.predict.models import open_shapes
from hotloop.predict.prediction import Programs, Speculation, predict, predict_speculative
from hotloop.util.errors import ModelFileError, OutOfMemoryError, UnsupportedError, UsageError

DATA = Path(__file__).parent / "data"
#: Layers, and billions of parameters, as published.
LLAMAS = {
    "llama-3.2-1b": (16, 1.236),
    "llama-3.2-3b": (28, 3.213),
    "llama-3.1-8b": (32, 8.030),
    "llama-3.1-70b": (80, 70.55),
    "llama-3.1-405b": (126, 405.9),
}


#: A config with which nothing is wrong.
SMALL: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["predict", *arguments, "--json"]) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


@pytest.mark.parametrize("name", LLAMAS)
def test_configs_have_their_parameters(name: str) -> None:
    layers, billions = LLAMAS[name]
    made = open_bundled(name)
    parameters = sum(weight.type.elements for weight in made.tensors.values())
    assert parameters == pytest.approx(billions * 1e9, rel=1e-3)
    assert made.config.layers == layers


@pytest.mark.parametrize("name", bundled())
def test_every_config_becomes_a_graph_or_its_family_says_why_not(name: str) -> None:
    try:
        graph = open_shapes(name, "bf16").graph(Step(context=256))
    except UnsupportedError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert graph.weights


def test_no_weight_takes_memory() -> None:
    weight = open_bundled("llama-3.1-405b").tensors["output.weight"]
    assert len(weight.data) == weight.type.nbytes == 128256 * 16384 * 2
    assert weight.data.base is not None
    assert weight.data.strides == (0,)


def test_the_published_traffic_row() -> None:
    """Parameters, cache and both, as the paper's first table has them: 14.9, 0.5, 15.4 GiB."""
    programs = Programs(open_shapes("llama-3.1-8b"), 4096)
    weights, cache = programs.weight_bytes / 2**30, programs.position_bytes * 4096 / 2**30
    assert weights == pytest.approx(14.9, abs=0.1)
    assert cache == pytest.approx(0.5, abs=0.01)
    assert weights + cache == pytest.approx(15.4, abs=0.1)


def test_the_keys_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    values = answer(capsys, "llama-3.1-8b", "-M", "sn40l-x16", "--context", "8192")
    assert values["calls"] == {"ops": 582, "library": 323, "fused": 35, "looped": 4}
    assert values["tok_s"] == pytest.approx(1e3 / values["ms"])
    assert 0.5 < values["share"] < 1
    assert 1 < values["speedup_looped"] < 3
    assert values["bytes_per_token"] == pytest.approx(16.08e9, rel=0.01)
    assert main(["predict", "llama-3.1-8b", "-M", "dgx-h100"]) == 0
    assert "schedule library" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gemma-2-9b", "gemma-3-1b", "gpt-oss-120b"])
def test_layers_that_differ_in_scalars_are_one_kernel_before_they_are_a_loop(name: str) -> None:
    """Or looping would get the credit for loading fewer programs."""
    programs = Programs(open_shapes(name), 4096)
    layers = programs.decoder.config.layers
    fused = [call.kernel for call in calls(programs["fused"].body)]
    assert len(fused) > layers
    assert len(set(fused)) == len(fused) - layers + 1


def test_405b_goes_through_the_passes() -> None:
    programs = Programs(open_shapes("llama-3.1-405b"), 4096)
    made = predict(programs, find("sn40l-x16"))
    assert made.calls["looped"] == 4
    assert made.calls["fused"] == 126 + 3


def test_what_does_not_fit_is_one_sentence() -> None:
    programs = Programs(open_shapes("llama-3.1-405b"), 4096)
    with pytest.raises(OutOfMemoryError, match=r"needs 814 GB .* and dgx-h100 has 640"):
        predict(programs, find("dgx-h100"))


def test_what_does_not_fit_in_hbm_comes_from_the_second_memory() -> None:
    programs = Programs(open_shapes("llama-3.1-405b"), 4096)
    machine = find("sn40l-x8")
    made = predict(programs, machine)
    assert 0.3 < made.spilled < 0.4
    whole = predict(programs, machine.with_values(memory_size=128e9))
    assert whole.spilled == 0
    assert made.ms > 3 * whole.ms


def test_a_draft_makes_more_tokens_as_more_of_it_is_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, draft = (Programs(open_shapes(n), 4096) for n in ("llama-3.1-70b", "llama-3.2-1b"))
    machine = find("sn40l-x16")
    speeds = [
        predict_speculative(target, draft, Speculation(5, a), machine)[0] for a in (0, 0.5, 0.8, 1)
    ]
    plain = predict(target, machine).tok_s
    assert speeds == sorted(speeds)
    assert speeds[0] < plain < speeds[-1] < 6 * plain
    assert Speculation(3, 1.0).expected == 4
    assert Speculation(3, 0.5).expected == 1.875
    with pytest.raises(UsageError, match="is not possible"):
        Speculation(0, 0.5)
    with pytest.raises(UsageError, match="is not possible"):
        Speculation(1, 1.5)
    values = answer(capsys, "llama-3.1-70b", "-M", "sn40l-x16", "--draft", "llama-3.2-1b")
    assert values["speculative_speedup"] > 1


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    slow = answer(capsys, "llama-3.2-1b", "-M", "sn40l-x16")
    fast = answer(capsys, "llama-3.2-1b", "-M", "sn40l-x16", "--set", "start=1 us")
    assert fast["tok_s"] > slow["tok_s"]
    assert fast["speedup_looped"] < slow["speedup_looped"]
    assert main(["predict", "llama-3.2-1b", "-M", "sn40l-x16", "--set", "start"]) == 2
    assert "write FIELD=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("memory_bandwidth=0 TB/s", "a rate such as 3.35 TB/s is expected"),
        ("memory_share=0 %", "a share such as 90 % is expected"),
        ("memory_share=120 %", "a share such as 90 % is expected"),
        ("compute=0 TFLOP/s", "operations per second such as 989 TFLOP/s is expected"),
        ("memory_size=0 GB", "a size such as 80 GB is expected"),
        ("sockets=0", "a whole number such as 8 is expected"),
        ("start=-1 us", "a time such as 1.3 us is expected"),
        ("speed=1", "dgx-h100 has no field 'speed'"),
    ],
)
def test_numbers_that_no_machine_has(
    setting: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "llama-3.2-1b", "-M", "dgx-h100", "--set", setting]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_a_number_that_differs_by_threads_is_set_for_all_or_for_one() -> None:
    epyc = find("epyc-9654")
    free = epyc.with_settings({"start": "0 us"})
    assert free.at("start", 1) == free.at("start", 96) == 0
    partly = epyc.with_settings({"start.96": "0 us"})
    assert partly.at("start", 1) == epyc.at("start", 1) > partly.at("start", 96)


def test_threads_are_a_cpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "llama-3.2-1b", "-M", "dgx-h100", "-t", "4"]) == 2
    assert "dgx-h100 is no CPU, and has no threads to choose" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--draft-tokens 3", "go with --draft"),
        ("--acceptance 0.5", "go with --draft"),
        ("--draft llama-3.2-1b --schedule ops", "leave --schedule out"),
        ("-M epyc-9654 --orchestration software", "epyc-9654 is its own host"),
    ],
)
def test_options_that_would_do_nothing(
    options: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "llama-3.2-1b", "-M", "dgx-h100", *options.split()]) == 2
    assert expected in capsys.readouterr().err


def test_a_mixture_in_8_bit_floats_is_predicted_as_published() -> None:
    weights = open_bundled("deepseek-r1").tensors
    assert {weight.type.format.name for weight in weights.values()} >= {"f8_128"}


def test_fewer_bits_are_fewer_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    full = answer(capsys, "llama-3.2-1b", "-M", "dgx-h100")
    small = answer(capsys, "llama-3.2-1b", "-M", "dgx-h100", "--weights", "q4_0")
    assert small["weight_bytes"] == pytest.approx(full["weight_bytes"] * 4.5 / 16, rel=0.01)
    assert small["tok_s"] > full["tok_s"]


def test_a_config_and_a_folder_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = DATA / "tiny" / "llama"
    whole = answer(capsys, str(folder), "-M", "sn40l-x8", "-c", "32")
    alone = answer(capsys, str(folder / "config.json"), "-M", "sn40l-x8", "-c", "32")
    assert whole["calls"] == alone["calls"]
    assert main(["predict", str(folder), "-M", "sn40l-x8", "--weights", "q8_0"]) == 2
    assert "needs a model that has none of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "does not name its architecture"),
        ({"model_type": "llama"}, "does not say hidden_size"),
        ({"model_type": "perceptron", "torch_dtype": "int3"}, "as int3, which hotloop does not"),
        (SMALL | {"vocab_size": -5}, "says vocab = -5, which no model has"),
        (SMALL | {"num_hidden_layers": 1000000}, "says layers = 1000000, which no model has"),
        (SMALL | {"intermediate_size": 0}, "says ffn = 0, which no model has"),
    ],
)
def test_bad_configs(config: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises((ModelFileError, UnsupportedError), match=message):
        open_shapes(str(path))


def test_names_that_are_none() -> None:
    with pytest.raises(UsageError, match=r"did you mean llama-3\.1-70b\?"):
        open_shapes("llama-3.1-70")
    with pytest.raises(UsageError, match="no model, config or file is called 'x'"):
        open_shapes("x")
