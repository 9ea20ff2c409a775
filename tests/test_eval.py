"""hotloop eval: windows that score each token once, perplexity and divergence by definition."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA
from hypothesis import given
from hypothesis import strategies as st
from shell import Shell

from hotloop import Model, load
from hotloop.bench.evaluate import Window, evaluate, log_softmax, windows
from hotloop.frontends.tokenizer import Tokenizer
from hotloop.util.errors import ContextError, UsageError

TINY = DATA / "tiny"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@dataclass
class Characters:
    """A codec whose ids are the numbers of characters."""

    size: int = 131

    def encode(self, text: str, special: bool) -> list[int]:
        return list(map(ord, text))

    def piece(self, id: int) -> bytes:
        return chr(id).encode()

    def whole_id(self, text: str) -> int | None:
        return None

    def is_special(self, id: int) -> bool:
        return False


def tiny(name: str, context: int, bos: int | None = None) -> Model:
    model = load(TINY / name, 2, activations="f32", context=context)
    model.tokenizer = Tokenizer(Characters(), bos_id=bos, adds_bos=bos is not None)
    return model


CASE = json.loads((TINY / "llama" / "reference.json").read_text())["cases"][2]
TEXT = "".join(map(chr, CASE["input_ids"]))


@given(
    count=st.integers(2, 60), window=st.integers(2, 20), step=st.integers(1, 19), bos=st.booleans()
)
def test_each_token_is_scored_once_and_has_enough_before_it(
    count: int, window: int, step: int, bos: bool
) -> None:
    stride = min(step, window - 1)
    cut = list(windows(range(count), window, stride, 999 if bos else None))
    scored = [token for each in cut for token in each.ids[each.first :]]
    assert scored == list(range(0 if bos else 1, count))
    for number, each in enumerate(cut):
        assert len(each.ids) <= window
        assert (each.ids[0] == 999) == bos
        assert each.first >= (window - stride if number else 1)


def test_windows_by_hand() -> None:
    assert list(windows([1, 2, 3, 4, 5], 3, 1, None)) == [
        Window((1, 2, 3), 1), Window((2, 3, 4), 2), Window((3, 4, 5), 2),
    ]  # fmt: skip
    assert list(windows([1, 2, 3], 3, 2, 0)) == [Window((0, 1, 2), 1), Window((0, 3), 1)]


def test_perplexity_is_that_of_an_independent_engine() -> None:
    with tiny("llama", 64) as model:
        result = evaluate(model, TEXT)
    losses = -np.array(CASE["logprob_of_next"])
    assert result.tokens == len(losses) == 47
    assert result.perplexity.value == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    error = losses.std(ddof=1) / np.sqrt(len(losses))
    assert result.perplexity.error == pytest.approx(error * result.perplexity.value, rel=1e-4)
    nbytes = len(TEXT[1:].encode())
    assert result.perplexity.bits_per_byte == pytest.approx(
        losses.sum() / np.log(2) / nbytes, rel=1e-4
    )


@pytest.mark.parametrize("bos", [None, 1])
def test_windows_and_divergence_by_definition(bos: int | None) -> None:
    ids = [ord(char) for char in TEXT]
    with tiny("llama", 16, bos) as model, tiny("llama_tied", 16, bos) as other:
        result = evaluate(model, TEXT, 5, other, "tied")
        ours, theirs, tokens = [], [], []
        for each in windows(ids, 16, 5, bos):
            for found, engine in ((ours, model), (theirs, other)):
                logits = engine.logits(each.ids[:-1])
                found += [log_softmax(row) for row in logits[each.first - 1 :]]
            tokens += each.ids[each.first :]
    q, p = np.array(ours), np.array(theirs)
    at = np.arange(len(tokens))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    divergence = result.divergence
    assert divergence is not None
    assert result.reference is not None
    assert result.bos == (bos is not None)
    assert result.perplexity.value == pytest.approx(np.exp(-q[at, tokens].mean()))
    assert result.reference.value == pytest.approx(np.exp(-p[at, tokens].mean()))
    assert divergence.kl == pytest.approx(kl.mean())
    assert divergence.kl_max == pytest.approx(kl.max())
    assert divergence.same_top == np.mean(q.argmax(axis=1) == p.argmax(axis=1))
    change = np.exp(q[at, tokens]) - np.exp(p[at, tokens])
    assert divergence.probability_rms == pytest.approx(np.sqrt((change**2).mean()))


@pytest.mark.parametrize("first", [0, 3, 70])
def test_each_logits_are_the_logits_bit_for_bit(first: int, smollm: Model) -> None:
    """Blocks and decode steps give the same bits, wherever the blocks begin."""
    ids = smollm.tokenize("one two three four five six seven " * 12)[:81]
    expected = smollm.logits(ids)
    found = np.array(list(smollm.each_logits(ids, first)))
    np.testing.assert_array_equal(found, expected[first:])
    again = np.array(list(smollm.each_logits(ids, first)))  # with all of them in the cache
    np.testing.assert_array_equal(again, found)


def test_other_activations_on_the_same_weights(smollm: Model, default_model: Path) -> None:
    ids = smollm.tokenize("The capital of France is")
    f32 = smollm.with_activations("f32")
    with load(default_model, 2, activations="f32", context=512) as separate:
        np.testing.assert_array_equal(f32.logits(ids), separate.logits(ids))
    text = "Water is wet, and the sky is blue."
    cost = evaluate(smollm, text, None, f32, "f32").divergence
    none = evaluate(smollm, text, None, smollm.with_schedule("fused"), "fused").divergence
    assert cost is not None
    assert none is not None
    assert 0 < cost.kl < 0.05
    assert (none.kl_max, none.same_top) == (0, 1)


def test_what_does_not_fit_together(smollm: Model) -> None:
    with tiny("llama", 16) as model:
        with pytest.raises(UsageError, match="the text has 1 tokens; give one of at least 2"):
            evaluate(model, "a")
        with pytest.raises(ContextError, match="begin every 16 tokens cannot be"):
            evaluate(model, TEXT, 16)
        with pytest.raises(UsageError, match="cut the text into other tokens"):
            evaluate(model, TEXT, None, smollm)


def test_command(shell: Shell, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The sky is blue. Grass is green. Snow is white.")
    assert shell("eval", "--text", str(text), "-c", "16", "--stride", "8", "--against-f32") == 0
    assert "perplexity" in shell.out
    assert "same top token" in shell.out
    assert shell("eval", "--text", str(text), "-c", "16", "--tokens", "9", "--json") == 0
    values = json.loads(shell.out)
    assert (values["tokens"], values["window"], values["stride"]) == (8, 16, 8)
    assert values["divergence"] is None


def test_command_errors(shell: Shell, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"abc\xff")
    for argv, found in (
        ((), "no text: give --text FILE"),
        (("--text", str(bad)), "is not UTF-8 (byte 3)"),
        (("--text", str(tmp_path / "none")), "cannot be read"),
        (("--text", str(bad), "--against", "x", "--against-f32"), "one comparison at a time"),
    ):
        assert shell("eval", *argv) == 2
        assert found in shell.err
