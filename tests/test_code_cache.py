"""Compiled code on disk: found again, never trusted blindly, never in the way."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import PATIENCE

from hotloop.backends.cpu import jit
from hotloop.lang import Module, Target, function, i64, ret
from hotloop.lang.target import host


def answer(number: int) -> jit.Code:
    module = Module("answer", host())
    with function(module, "answer", [], i64, exported=True):
        ret(number)
    return jit.load(module, ("answer",))


def call(code: jit.Code) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("answer"))()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    monkeypatch.delenv("HOTLOOP_CODE_CACHE", raising=False)
    return tmp_path / "code"


def test_the_second_time_it_is_found(cache: Path) -> None:
    first, second, other = answer(41), answer(41), answer(42)
    assert (first.cached, second.cached, other.cached) == (False, True, False)
    assert [call(code) for code in (first, second, other)] == [41, 41, 42]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 4000])
def test_a_damaged_file_is_compiled_again(cache: Path, damage: bytes) -> None:
    answer(43)
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    again = answer(43)
    assert not again.cached
    assert call(again) == 43
    assert answer(43).cached


def test_one_flipped_bit_is_noticed(cache: Path) -> None:
    answer(44)
    (file,) = cache.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert not answer(44).cached


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("HOTLOOP_CACHE", str(blocked))
    code = answer(45)
    assert not code.cached
    assert call(code) == 45


def test_what_killed_processes_left_is_removed_by_the_next_that_writes(cache: Path) -> None:
    cache.mkdir()
    abandoned, under_way = cache / "00.7.part", cache / "00.8.part"
    for part in (abandoned, under_way):
        part.write_bytes(b"half of it")
    old = time.time() - jit.ABANDONED - 1
    os.utime(abandoned, (old, old))
    answer(47)
    assert not abandoned.exists()
    assert under_way.exists()
    under_way.unlink()
    assert [file.suffix for file in cache.iterdir()] == [".o"]


def test_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CODE_CACHE", "0")
    assert not answer(46).cached
    assert not answer(46).cached
    assert not cache.exists()


def test_what_a_recipe_made_before_is_not_traced_again(cache: Path) -> None:
    traced: list[int] = []

    def made(number: int, recipe: str) -> jit.Code:
        def trace() -> Module:
            traced.append(number)
            module = Module("answer", host())
            with function(module, "answer", [], i64, exported=True):
                ret(number)
            return module

        return jit.load_recipe(recipe, trace, host(), "answer", ("answer",)).result()

    codes = made(47, "a"), made(47, "a"), made(48, "b")
    assert [code.cached for code in codes] == [False, True, False]
    assert [call(code) for code in codes] == [47, 47, 48]
    assert traced == [47, 48]


def test_llvm_works_while_the_caller_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, compile_object = threading.Event(), jit.compile_object

    def slow(text: str, target: Target) -> bytes:
        assert going_on.wait(PATIENCE)
        return compile_object(text, target)

    def trace() -> Module:
        module = Module("answer", host())
        with function(module, "answer", [], i64, exported=True):
            ret(50)
        return module

    monkeypatch.setattr(jit, "compile_object", slow)
    loading = jit.load_recipe("slow", trace, host(), "answer", ("answer",))
    assert not loading.done()
    going_on.set()
    assert call(loading.result()) == 50


def test_another_source_is_another_recipe(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> jit.Code:
        def trace() -> Module:
            module = Module("answer", host())
            with function(module, "answer", [], i64, exported=True):
                ret(49)
            return module

        return jit.load_recipe("r", trace, host(), "answer", ("answer",)).result()

    assert not made().cached
    assert made().cached
    monkeypatch.setattr(jit, "source_digest", lambda: "another")
    assert not made().cached


RECIPES = """
import hashlib
from hotloop.backends.cpu.places import place_states, place_weights, place_work
from hotloop.compiler import SCHEDULES, compile_graph
from hotloop.machine.host import host
from mini import mini_graph
for schedule in SCHEDULES:
    graph = mini_graph()
    program = compile_graph(graph, host(2), schedule).program
    recipe = repr((program, place_weights(graph), place_states(graph), place_work(program)))
    print(hashlib.sha256(recipe.encode()).hexdigest())
"""


def test_recipes_are_the_same_in_every_process() -> None:
    """So nothing in them may hang on the order of a set."""
    digests = set()
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        run = [sys.executable, "-c", RECIPES]
        digests.add(
            subprocess.run(run, env=environment, capture_output=True, check=True, text=True).stdout
        )
    assert len(digests) == 1
    assert len(digests.pop().split()) == 5
