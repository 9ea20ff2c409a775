"""Against independent engines: transformers' logits, llama.cpp's token ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA

from hotloop import Model, load

SMOLLM = json.loads((DATA / "smollm2-135m-q4_1.json").read_text())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# the tiny models, in float32


def cases(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "reference.json").read_text())["cases"]


def test_tiny_logits(tiny: Path) -> None:
    with load(tiny, 2, activations="f32") as model:
        for case in cases(tiny):
            ids = case["input_ids"]
            logits = model.logits(ids)
            np.testing.assert_allclose(logits[-1], case["logits_last"], rtol=0, atol=5e-4)
            following = log_softmax(logits)[np.arange(len(ids) - 1), ids[1:]]
            np.testing.assert_allclose(following, case["logprob_of_next"], rtol=0, atol=5e-4)
            assert logits.argmax(axis=-1).tolist() == case["argmax"]


def test_tiny_greedy_tokens(tiny: Path) -> None:
    with load(tiny, 2, activations="f32") as model:
        for case in cases(tiny):
            tokens = [token.id for token in model.generate(case["input_ids"], 24)]
            assert tokens == case["greedy_ids"]


# the default model


def reference_rows() -> list[tuple[list[int], list[int], np.ndarray]]:
    """For each case: the tokens to feed, the most likely ids, their log-probabilities."""
    return [
        (
            case["prompt_ids"] + case["greedy_ids"],
            np.array(case["top_ids"]),
            np.array(case["top_logprobs"]),
        )
        for case in SMOLLM["cases"]
    ]


def test_every_token_id(smollm: Model) -> None:
    for entry in SMOLLM["tokenizer"]:
        assert smollm.tokenize(entry["text"]) == entry["ids"], entry["text"]
        assert smollm.tokenize(entry["text"], special=False) == entry["ids_plain"], entry["text"]
    for case in SMOLLM["cases"]:
        assert smollm.prompt_ids(case["prompt"]) == case["prompt_ids"]


def distance(model: Model) -> tuple[float, float]:
    """The mean KL over the 16 most likely tokens, which hold nearly all of the probability, and the
    share of positions where the most likely token is llama.cpp's.
    """
    divergences, right = [], []
    for ids, top, expected in reference_rows():
        found = log_softmax(model.logits(ids))
        picked = np.take_along_axis(found, top, axis=1)
        divergences.append((np.exp(expected) * (expected - picked)).sum(axis=1))
        right.append(found.argmax(axis=1) == top[:, 0])
    return float(np.concatenate(divergences).mean()), float(np.concatenate(right).mean())


def test_eight_bit_activations_stay_close(smollm: Model) -> None:
    divergence, right = distance(smollm)
    assert divergence < 0.01
    assert right >= 0.95


def test_an_eight_bit_cache_stays_close(default_model: Path) -> None:
    """With float32 activations, so that the cache is all that differs."""
    with load(default_model, 2, activations="f32", kv_cache="q8", context=128) as model:
        divergence, right = distance(model)
    assert divergence < 0.003
    assert right >= 0.95


@pytest.mark.parametrize("schedule", ["ops", "tokens"])
def test_float32_activations_match(default_model: Path, schedule: str) -> None:
    with load(default_model, 2, schedule, "f32", context=128) as model:
        for ids, top, expected in reference_rows():
            found = log_softmax(model.logits(ids))
            picked = np.take_along_axis(found, top, axis=1)
            np.testing.assert_allclose(picked, expected, rtol=0, atol=2e-2)
            assert found.argmax(axis=1).tolist() == top[:, 0].tolist()
