"""Generation through the Python API: streams, ends, errors."""

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA
from waiting import PATIENCE

from hotloop import Model, Token, load
from hotloop.util.errors import ContextError, HotloopError, UnsupportedError, UsageError

TINY_LLAMA = DATA / "tiny" / "llama"
PROMPT = [1, 5, 9]


@pytest.fixture(scope="module")
def model():  # type: ignore[no-untyped-def]
    with load(TINY_LLAMA, 2, context=64) as loaded:
        yield loaded


def ids(tokens) -> list[int]:  # type: ignore[no-untyped-def]
    return [token.id for token in tokens]


def test_tokens_come_with_text(smollm: Model) -> None:
    tokens = list(smollm.generate("The capital of France is", 8))
    assert all(isinstance(token, Token) for token in tokens)
    text = "".join(token.text for token in tokens)
    assert text == smollm.detokenize(ids(tokens))
    assert text.startswith(" Paris")


def test_split_characters_stay_whole(smollm: Model) -> None:
    """The stream never yields half of a UTF-8 sequence, and loses none of it."""
    text = "naïve 🙂 文字 " * 3
    prompt = smollm.prompt_ids(text)
    assert smollm.detokenize(prompt) == text
    tokens = list(smollm.generate(prompt, 24, temperature=1.5, seed=3, stop_ids=()))
    assert "".join(token.text for token in tokens) == smollm.detokenize(ids(tokens))


def test_chat_ends_with_the_model_s_own_end(smollm: Model) -> None:
    tokens = list(smollm.chat([{"role": "user", "content": "Say yes."}], max_tokens=200))
    assert smollm.finish_reason == "stop"
    assert tokens[-1].id in smollm.stop_ids
    assert tokens[-1].text == ""


def test_seeds_decide(model: Model) -> None:
    def draw(seed: int) -> list[int]:
        return ids(model.generate(PROMPT, 20, temperature=1.0, seed=seed, stop_ids=()))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len({tuple(draw(seed)) for seed in range(20)}) == 20
    assert draw(2**64 - 1) != draw(2**63)


def test_stop_tokens_end_the_launch(model: Model) -> None:
    greedy = ids(model.generate(PROMPT, 20, stop_ids=()))
    assert model.finish_reason == "length"
    stop = next(token for i, token in enumerate(greedy) if token not in greedy[:i] and i >= 3)
    found = ids(model.generate(PROMPT, 20, stop_ids=[130, stop]))
    assert found == greedy[: greedy.index(stop) + 1]
    assert model.finish_reason == "stop"


def test_the_context_is_used_to_its_end(model: Model) -> None:
    tokens = ids(model.generate(PROMPT, None, stop_ids=()))
    # Positions 0 … 63 are taken in; the token after the last of them is still known.
    assert len(tokens) == 64 - len(PROMPT) + 1
    assert model.finish_reason == "length"
    full = list(range(64))
    assert len(ids(model.generate(full, 10, stop_ids=()))) == 1


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_tokens(model: Model, n: int) -> None:
    assert len(ids(model.generate(PROMPT, n, stop_ids=()))) == n


def test_one_token_prompts(model: Model) -> None:
    assert ids(model.generate([7], 5, stop_ids=())) == ids(model.generate([7], 5, stop_ids=()))


def test_closing_the_stream_cancels(smollm: Model) -> None:
    stream = smollm.generate("Once upon a time", 400, stop_ids=())
    first = list(itertools.islice(stream, 3))
    stream.close()
    assert smollm.finish_reason == "cancelled"
    again = list(itertools.islice(smollm.generate("Once upon a time", 400, stop_ids=()), 3))
    assert first == again


def test_a_new_generation_ends_the_old_one(smollm: Model) -> None:
    old = smollm.generate("Once upon a time", 400, stop_ids=())
    next(old)
    new = ids(smollm.generate("The capital of France is", 8))
    assert new == ids(smollm.generate("The capital of France is", 8))
    old.close()
    assert new == ids(smollm.generate("The capital of France is", 8))


def test_a_cache_hit_changes_nothing(model: Model) -> None:
    long = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
    cold = model.logits(long)
    first = ids(model.generate(long, 12, stop_ids=()))
    assert ids(model.generate(long, 12, stop_ids=())) == first
    assert ids(model.generate(long + first[:6], 6, stop_ids=())) == first[6:]
    assert ids(model.generate(long[:10], 3, stop_ids=())) == ids(
        model.generate(long[:10], 3, stop_ids=())
    )
    assert model.logits(long).tobytes() == cold.tobytes()


def test_logits_have_a_row_for_each_token(model: Model) -> None:
    logits = model.logits(PROMPT)
    assert logits.shape == (3, 131)
    assert logits.dtype == np.float32
    assert logits[:2].tobytes() == model.logits(PROMPT[:2]).tobytes()


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([], UsageError, "no tokens"),
        ([131], UsageError, "no token 131"),
        ([-1], UsageError, "no token -1"),
        (list(range(65)), ContextError, "65 tokens and the context holds 64"),
    ],
)
def test_prompts_that_cannot_be(
    model: Model, prompt: list[int], error: type[HotloopError], words: str
) -> None:
    with pytest.raises(error, match=words):
        model.generate(prompt)
    with pytest.raises(error, match=words):
        model.logits(prompt)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": 2.0},
        {"repeat_penalty": 0.0},
        {"repeat_last_n": -2},
        {"seed": -1},
        {"seed": 2**64},
        {"max_tokens": -1},
        {"stop_ids": list(range(33))},
    ],
)
def test_options_out_of_range(model: Model, options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        model.generate(PROMPT, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"threads": -1}, UsageError, "at least one thread"),
        ({"schedule": "sideways"}, UsageError, "not one of ops, fused"),
        ({"activations": "q3"}, UsageError, "must be one of q8, f32"),
        ({"kv_cache": "q4"}, UsageError, "kv_cache is 'q4'; it must be one of f16, q8, f32"),
        ({"context": 0}, ContextError, "made for 1 to 256"),
        ({"context": 257}, ContextError, "made for 1 to 256"),
        ({"wake": "drowsy"}, UsageError, "must be one of parked, spinning"),
    ],
)
def test_loads_that_cannot_be(
    options: dict[str, object], error: type[HotloopError], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(TINY_LLAMA, **options)  # type: ignore[arg-type]


def test_text_needs_a_tokenizer(model: Model) -> None:
    with pytest.raises(UnsupportedError, match="no tokenizer"):
        model.generate("text")
    with pytest.raises(UnsupportedError, match="no chat template"):
        model.chat([{"role": "user", "content": "text"}])


def test_a_closed_model_refuses() -> None:
    loaded = load(TINY_LLAMA, 2)
    loaded.close()
    loaded.close()
    with pytest.raises(UsageError, match="closed"):
        list(loaded.generate(PROMPT))


def test_a_context_of_one(model: Model) -> None:
    with load(TINY_LLAMA, 1, context=1) as small:
        assert len(ids(small.generate([4], 10, stop_ids=()))) == 1


def test_values_are_seen_between_launches(model: Model) -> None:
    with pytest.raises(UsageError, match="schedule='ops'"):
        model.trace(PROMPT)
    with load(TINY_LLAMA, 2, "ops", context=64) as ops:
        values = dict(ops.trace(PROMPT))
        assert values["logits"].tobytes() == ops.logits(PROMPT)[-1:].tobytes()
        assert values["blk.2.out"].shape == (1, 64)


INTERRUPTED = """
import signal, sys
from hotloop import load
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
model = load(sys.argv[1], 2, context=8192)
try:
    for i, token in enumerate(model.generate("Once upon a time", 8000, stop_ids=())):
        if i == 2:
            print("ready", flush=True)
except KeyboardInterrupt:
    print(model.finish_reason, len(list(model.generate("The capital", 5))), flush=True)
"""


def test_ctrl_c_stops_at_the_next_token_and_leaves_the_process_usable(
    default_model: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(default_model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert out == "cancelled 5\n", err
    assert process.returncode == 0
