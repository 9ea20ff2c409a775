"""The ladder: every rung and every number of threads gives the same bits."""

from pathlib import Path

import numpy as np
import pytest

from hotloop import Model, load
from hotloop.compiler import SCHEDULES
from hotloop.runtime.sampling import Sampling

THREADS = (1, 2, 3, 4)
PROMPT = [1, 5, 9, 2, 77, 31, 8, 100, 64, 3, 12]
SAMPLED = {
    "temperature": 0.9,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.02,
    "repeat_penalty": 1.1,
    "seed": 7,
}


def generate(model: Model, ids: list[int], n: int, **options: float) -> list[int]:
    return [token.id for token in model.generate(ids, n, stop_ids=(), **options)]


@pytest.mark.parametrize(
    ("activations", "kv_cache"),
    [("q8", None), ("f32", None), ("q8", "q8"), ("f32", "q8")],
    ids=["q8", "f32", "q8-q8", "f32-q8"],
)
def test_tiny_models_agree(tiny: Path, activations: str, kv_cache: str | None) -> None:
    seen = []
    for threads in THREADS:
        with load(tiny, threads, SCHEDULES[0], activations, kv_cache=kv_cache) as bottom:
            rungs = [bottom, *(bottom.with_schedule(name) for name in SCHEDULES[1:])]
            for model in rungs:
                logits = model.logits(PROMPT)
                greedy = generate(model, PROMPT, 24)
                sampled = generate(model, PROMPT, 24, **SAMPLED)
                seen.append((logits.tobytes(), greedy, sampled))
    assert all(entry == seen[0] for entry in seen)
    assert len(seen) == len(THREADS) * len(SCHEDULES)


@pytest.mark.parametrize("threads", THREADS)
def test_default_model_agrees(default_model: Path, smollm: Model, threads: int) -> None:
    ids = smollm.prompt_ids("The rungs of a ladder are")
    expected = (
        smollm.logits(ids).tobytes(),
        generate(smollm, ids, 16),
        generate(smollm, ids, 16, **SAMPLED),
    )
    with load(default_model, threads, SCHEDULES[0], context=512) as bottom:
        for schedule in SCHEDULES:
            model = bottom if schedule == bottom.schedule else bottom.with_schedule(schedule)
            logits = model.logits(ids).tobytes()
            found = (logits, generate(model, ids, 16), generate(model, ids, 16, **SAMPLED))
            assert found == expected, schedule


def test_spinning_threads_agree(tiny: Path) -> None:
    with load(tiny, 2, "ops", wake="spinning") as spinning, load(tiny, 2, "tokens") as parked:
        assert generate(spinning, PROMPT, 24) == generate(parked, PROMPT, 24)


def test_a_prompt_in_blocks_leaves_the_same_cache(smollm: Model) -> None:
    """Reading a prompt in blocks, token by token, or after a cache hit: the same bits."""
    ids = smollm.prompt_ids("One two three four five six seven eight nine ten. " * 6)
    by_token = smollm.logits(ids)[-1]
    smollm._session.forget()
    blocks = generate(smollm, ids, 8)
    hit = generate(smollm, ids, 8)
    assert blocks == hit
    assert blocks[0] == int(np.argmax(by_token))
    # The step after the blocks saw the same keys and values as the one after single tokens.
    smollm._session.forget()
    smollm._session.start(ids, 1, Sampling())
    smollm._session.run()
    assert smollm._session.decode.view("logits")[0].tobytes() == by_token.tobytes()


def test_portable_code_gives_the_same_bits(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for target in ("native", "portable"):
        monkeypatch.setenv("HOTLOOP_TARGET", target)
        with load(tiny, 2) as model:
            tokens = generate(model, PROMPT, 12, **SAMPLED)
            found.append((model.logits(PROMPT).tobytes(), tokens))
    assert found[0] == found[1]


def test_short_prompts_are_read_by_decode_steps_with_the_same_bits(tiny: Path) -> None:
    """A short prompt compiles nothing; once a long one has, short ones are read in blocks, too."""
    with load(tiny, 2, context=128) as model:
        steps = generate(model, PROMPT, 12)
        last = model._session.decode.view("logits").tobytes()
        assert model._session._prompt_program is None
        generate(model, [token % 131 for token in range(3, 103, 2)], 1)
        assert model._session._prompt_program is not None
        model._session.forget()
        assert generate(model, PROMPT, 12) == steps
        assert model._session.decode.view("logits").tobytes() == last
