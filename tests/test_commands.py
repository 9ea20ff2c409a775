"""ir, explain, diff, bench, env, cache and pull, on a tiny model."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import Shell

from hotloop.cli.progress import progress_bar
from hotloop.ir.parse import parse_graph, parse_program
from hotloop.ir.text import text as ir_text
from hotloop.util import settings

TINY = str(Path(__file__).parent / "data" / "tiny" / "llama")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_ir_prints_programs_that_parse_back(shell: Shell) -> None:
    for argv in ([], ["--after", "fuse"], ["--after", "loop-tokens"], ["--prefill"]):
        assert shell("ir", TINY, *argv) == 0
        assert ir_text(parse_program(shell.out)) == shell.out
    assert shell("ir", TINY, "--graph") == 0
    assert ir_text(parse_graph(shell.out)) == shell.out


def test_ir_names_the_passes_where_one_is_wrong(shell: Shell) -> None:
    assert shell("ir", TINY, "--after", "pipelin") == 2
    assert "its passes are fuse, lift, loop, pipeline" in shell.err
    assert shell("ir", TINY, "--schedule", "ops", "--after", "fuse") == 2
    assert "its passes are lower, memory, partition" in shell.err


def test_ir_is_coloured_by_what_words_are() -> None:
    from hotloop.cli.ir import highlighted

    text = highlighted("  %next = sample(%weight) : i32[1]  stage %s0 after %entry")
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles == {
        "%next": "cyan", "sample": "blue", "%weight": "cyan", "i32[1]": "green",
        "stage": "bold", "after": "bold", "%s0": "cyan", "%entry": "cyan",
    }  # fmt: skip


def test_explain_as_tables_and_as_json(shell: Shell) -> None:
    assert shell("explain", TINY, "-t", "2", "-c", "64") == 0
    assert "1 per generation" in shell.out
    assert shell("explain", TINY, "-t", "2", "-c", "64", "--json", "--schedule", "fused") == 0
    values = json.loads(shell.out)
    assert (values["schedule"], values["threads"], values["loops"]) == ("fused", 2, [])


def test_diff_finds_nothing_in_a_sound_model(shell: Shell) -> None:
    assert shell("diff", TINY, "-t", "2", "-c", "64", "--ids", "1,2,3") == 0
    assert "values are within 0.0001 of their meaning" in shell.out
    assert "schedule tokens: the same logits as ops, bit for bit" in shell.out


def test_diff_tells_the_first_op_beyond_the_tolerance(shell: Shell) -> None:
    argv = ["--ids", "1", "--schedule", "ops", "--tolerance", "0"]
    assert shell("diff", TINY, "-c", "64", *argv) == 1
    assert "The first value beyond 0, at position 0:" in shell.out
    assert "and should be" in shell.out


def test_env_lists_every_setting(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_WATCHDOG", "7.5")
    assert shell("env") == 0
    for setting in settings.ALL:
        assert setting.name in shell.out
    assert "7.5" in shell.out


def test_cache_shows_and_clears_only_what_is_ours(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    assert shell("cache") == 0
    assert shell.out.startswith(f"{tmp_path}\n")
    kept = [tmp_path / "notes.txt", tmp_path / "code" / "main.c", tmp_path / "models" / "mine.txt"]
    code = [tmp_path / "code" / "a.o", tmp_path / "code" / "b.1.part"]
    models = [tmp_path / "models" / "a.gguf", tmp_path / "models" / "hub" / "x" / "blob"]
    for file in (*kept, *code, *models):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(1_000_000))
    assert shell("cache", "size") == 0
    assert [line.split() for line in shell.out.splitlines()] == [
        ["models", "2.0", "MB"],
        ["code", "2.0", "MB"],
    ]
    assert shell("cache", "clear") == 0
    assert shell.out == "2 files deleted, 2.0 MB.\n"
    assert [file.exists() for file in (*kept, *code, *models)] == [True] * 3 + [False] * 2 + [
        True
    ] * 2
    assert shell("cache", "clear", "--models") == 0
    assert [file.exists() for file in (*kept, *models)] == [True] * 3 + [False] * 2
    assert shell("cache", "path") == 0
    assert shell.out == f"{tmp_path}\n"


def test_pull_prints_the_path(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotloop.frontends import store

    asked: list[str] = []

    def pull(name: str, progress: Callable[[int, int | None, str], None]) -> Path:
        asked.append(name)
        progress(0, 98_000_000, "download")
        progress(98_000_000, 98_000_000, "download")
        return Path("/cache/model.gguf")

    monkeypatch.setattr(store, "pull", pull)
    assert shell("pull") == 0
    assert asked == ["smollm2"]
    assert shell.out == "/cache/model.gguf\n"
    assert shell.err == "downloading the model (98 MB) …\n"


def test_pull_of_an_unknown_name(shell: Shell) -> None:
    assert shell("pull", "gpt-9") == 2
    assert "known: smollm2" in shell.err


def test_the_bar_appears_on_terminals_and_only_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("hotloop.cli.progress.PATIENCE", float("inf"))
    with progress_bar() as report:
        report(1, 2, "pack")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    monkeypatch.setattr("hotloop.cli.progress.PATIENCE", 0.0)
    with progress_bar() as report:
        report(1, 2, "pack")
        report(2, 2, "pack")
        report(0, None, "wait for another pull")
    assert "pack" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_bench_prints_a_table_or_json_or_both(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hotloop.bench import first_token, ladder
    from hotloop.bench.result import FirstToken

    monkeypatch.setattr(ladder, "DRAM_BYTES", 1 << 20)
    monkeypatch.setattr(first_token, "measure", lambda *_: [FirstToken(1, 1, 1, 1, 1, 5)] * 2)
    file = tmp_path / "bench.json"
    argv = ["-t", "1", "-c", "32", "--rounds", "1", "--tokens", "2", "--rungs", "tokens", "--json"]
    assert shell("bench", TINY, *argv, "-") == 0
    values = json.loads(shell.out)
    assert (values["threads"], list(values["rungs"])) == (1, ["tokens"])
    assert shell.err == ""
    assert shell("bench", TINY, *argv, str(file)) == 0
    assert json.loads(file.read_text()).keys() == values.keys()
    assert "plain read" in shell.out
    assert shell("bench", TINY, *argv, str(tmp_path / "no" / "where")) == 2
    assert "cannot be written" in shell.err
