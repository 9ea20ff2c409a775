"""--quantize: what is rounded, to which bytes, and what it costs."""

import json

import gguf
import numpy as np
import pytest
from conftest import DATA
from shell import Shell

from hotloop import load
from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.models import decoder
from hotloop.frontends.open_file import open_model
from hotloop.frontends.quantised import quantised
from hotloop.ir.encode import ENCODED
from hotloop.util.errors import UsageError

TINY = DATA / "tiny" / "llama"


@pytest.fixture
def stored() -> Decoder:
    return decoder(open_model(TINY))


@pytest.mark.parametrize("name", ENCODED)
def test_matrices_become_what_gguf_makes_of_them_and_vectors_stay(
    stored: Decoder, name: str
) -> None:
    made = quantised(stored, name)
    formats = {weight.name: weight.type.format.name for weight in made.graph(Step()).weights}
    for tensor, weight in stored.tensors.items():
        if len(weight.type.shape) == 1:
            assert made.tensors[tensor] is weight
            continue
        values = weight.data.view(np.float32).reshape(weight.type.shape)
        wanted = "q8_0" if tensor == "output.weight" else name
        expected = gguf.quantize(values, gguf.GGMLQuantizationType[wanted.upper()])
        np.testing.assert_array_equal(made.tensors[tensor].data, expected.reshape(-1))
        assert made.tensors[tensor].type.shape == weight.type.shape
        assert formats[tensor] == wanted


def divergence(logits: np.ndarray, reference: np.ndarray) -> float:
    """Mean KL divergence of the next token's distribution from the reference's, in nats."""
    p, q = (x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in (reference, logits))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def test_the_loss_is_small_and_grows_as_bits_go() -> None:
    """Measured on this model's random weights: 0.005 nats for q8_0, 0.5 for those of 4 bits."""
    ids = json.loads((TINY / "reference.json").read_text())["cases"][2]["input_ids"]
    losses = {}
    with load(TINY, 2, context=64) as model:
        reference = model.logits(ids).copy()
    for name in ENCODED:
        with load(TINY, 2, context=64, quantize=name) as model:
            losses[name] = divergence(model.logits(ids), reference)
            assert model.decoder.quantised == name
    assert 0 < losses["q8_0"] < 0.02
    assert losses["q8_0"] < min(losses["q4_0"], losses["q4_1"])
    assert max(losses["q4_0"], losses["q4_1"]) < 1


def test_it_is_for_unquantised_models(stored: Decoder) -> None:
    with pytest.raises(UsageError, match="has no f32, f16 or bf16 matrix to quantise"):
        quantised(quantised(stored, "q8_0"), "q4_0")
    with pytest.raises(UsageError, match="quantize is 'q3_k'; it must be one of q8_0, q4_0, q4_1"):
        load(TINY, quantize="q3_k")


def test_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(capsys)
    assert shell("ir", str(TINY), "--graph", "--quantize", "q4_1") == 0
    assert "q4_1[" in shell.out
    for command in ("run", "chat", "bench", "explain", "diff", "eval"):
        assert shell(command, "--help") == 0
        assert "--quantize" in shell.out
