"""Starting: code is compiled while weights are packed, a large model's prompt program at once."""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hotloop import api, load
from hotloop.api import Model
from hotloop.backends.cpu import arena
from hotloop.backends.cpu.team import Team
from hotloop.frontends.decoder import Decoder, Step
from hotloop.frontends.model_file import ModelFile, WeightData
from hotloop.ir.encode import ENCODED
from hotloop.runtime.session import FEW_TOKENS
from hotloop.util.errors import ModelFileError, OutOfMemoryError, UnsupportedError

TINY = Path(__file__).parent / "data" / "tiny"
LENGTHS = (1, FEW_TOKENS + 1, FEW_TOKENS + 2, 15, 16, 17, 18, 33, 47, 129, 146)


def after(model: Model, ids: list[int]) -> bytes:
    """The logits of the token after a prompt that nothing is known of."""
    model._session.forget()
    next(iter(model.generate(ids, max_tokens=1, stop_ids=())))
    return np.asarray(model._session.decode.view("logits")).tobytes()


@pytest.mark.parametrize("quantize", [*ENCODED, None])
def test_prompts_of_any_length_in_blocks_or_by_steps(
    quantize: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles, a prompt's last block is filled up with what lies there: it must not show."""
    tiny = TINY / "llama"
    ids = [(7 * i + 3) % 128 for i in range(max(LENGTHS))]
    with load(tiny, 2, context=256, quantize=quantize) as model:
        by_steps = model.logits(ids)
    monkeypatch.setattr(api, "LARGE", 0)
    with load(tiny, 2, context=256, quantize=quantize) as model:
        program = model._session._prompt_program
        assert program is not None
        for n in reversed(LENGTHS):  # the shorter ones find what the longer ones have left
            assert after(model, ids[:n]) == by_steps[n - 1].tobytes()
        assert model._session._prompt_program is program


def test_a_small_model_waits_with_the_program_for_prompts(tiny: Path) -> None:
    with load(tiny, 1, context=64) as model:
        assert model._session._prompt_program is None
        model.compile_prompts()
        assert model._session._prompt_program is not None


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_packing_gives_way_and_nothing_else_does(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    weight, found = Decoder.weight, set()

    def noted(self: Decoder, name: str, step: Step) -> WeightData:
        found.add(priority())
        return weight(self, name, step)

    monkeypatch.setattr(Decoder, "weight", noted)
    before = priority()
    load(tiny, 2).close()
    assert found == {min(before + 10, 19)}
    assert priority() == before


def test_a_weight_that_cannot_be_read_ends_the_start(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = Decoder.weight

    def broken(self: Decoder, name: str, step: Step) -> WeightData:
        if name == "output_norm.weight":
            raise ModelFileError("output_norm.weight is not what it was.")
        return weight(self, name, step)

    before = threading.enumerate()
    monkeypatch.setattr(Decoder, "weight", broken)
    with pytest.raises(ModelFileError, match="not what it was"):
        load(tiny, 2)
    only_these_are_left(before)


def only_these_are_left(threads: list[threading.Thread]) -> None:
    """LLVM cannot be interrupted, and ends by itself; all others are gone at once."""
    for thread in set(threading.enumerate()) - set(threads):
        assert thread.name.startswith("hotloop-compile")
        thread.join(60)
        assert not thread.is_alive()


def test_a_tokenizer_that_cannot_be_ends_packing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing, failed = threading.Event(), threading.Event()
    weight, reported = Decoder.weight, []

    def slow(self: Decoder, name: str, step: Step) -> WeightData:
        packing.set()
        assert failed.wait(60)
        return weight(self, name, step)

    def broken(file: ModelFile) -> None:
        assert packing.wait(60)
        raise UnsupportedError("nobody knows this tokenizer.")

    def team(threads: int, wake: str) -> Team:
        made = Team(threads, wake)
        end = made.close

        def close() -> None:
            failed.set()
            end()

        monkeypatch.setattr(made, "close", close)
        return made

    before = threading.enumerate()
    monkeypatch.setattr(Decoder, "weight", slow)
    monkeypatch.setattr(api, "load_tokenizer", broken)
    monkeypatch.setattr(api, "Team", team)
    with pytest.raises(UnsupportedError, match="nobody knows"):
        load(tiny, 2, progress=lambda *args: reported.append(args))
    assert reported == []
    only_these_are_left(before)


def test_weights_and_cache_are_asked_for_together(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either would fit by itself, and memory that nobody has touched yet counts as available."""
    with load(tiny, 1, context=64) as model:
        weights, state = model._weights.region.nbytes, model._session.decode.state.region.nbytes
    monkeypatch.setattr(arena, "available_bytes", lambda: max(weights, state) + 1)
    with pytest.raises(OutOfMemoryError, match="this model needs"):
        load(tiny, 1, context=64)
