"""The command line: what goes to stdout, what to stderr, and the exit code.

Most tests run `main` in this process on a stand-in for the model; what depends on a real process
(signals, pipes, imports) runs in one.
"""

import io
import os
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest
from shell import FakeModel, Shell, type_in
from waiting import PATIENCE

import hotloop.api
from hotloop import __version__
from hotloop.cli import options
from hotloop.cli.main import EXIT_BUG, app, main
from hotloop.compiler import SCHEDULES
from hotloop.util import errors

TINY = str(Path(__file__).parent / "data" / "tiny" / "llama")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake = FakeModel()
    monkeypatch.setattr(hotloop.api, "load", fake.load)
    return fake


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


# help and version --------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from hotloop.cli.main import main\n"
        "main(sys.argv[1:])\n"
        "heavy = {'llvmlite', 'numpy', 'tokenizers', 'jinja2', 'huggingface_hub', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    for argv in (["--help"], ["run", "--help"], ["bench", "--help"], ["--version"], []):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0
        assert done.stderr.strip() == "[]"


COMMANDS = [
    *(command.name or command.callback.__name__ for command in app.registered_commands),
    *(group.name for group in app.registered_groups),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(shell: Shell, command: str) -> None:
    assert shell() == 0
    assert f"\n  {command}" in shell.out
    assert shell(command, "--help") == 0
    assert shell.out.startswith(f"Usage: hotloop {command}")


def test_no_summary_in_the_list_of_commands_is_cut_off(shell: Shell) -> None:
    shell("--help")
    assert "..." not in shell.out.split("Commands:")[1]


def test_version(shell: Shell) -> None:
    assert shell("--version") == 0
    assert shell.out == f"hotloop {__version__}\n"


def test_schedule_names_are_the_compilers() -> None:
    literal = typing.get_args(options.Schedule)[0]
    assert typing.get_args(literal) == SCHEDULES


# run ---------------------------------------------------------------------------------------------


def test_run_prints_the_text_and_nothing_else_to_stdout(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi") == 0
    assert shell.out == "Hello.\n"
    assert shell.err == ""
    assert model.loaded["closed"]


def test_run_passes_everything_on(model: FakeModel, shell: Shell) -> None:
    given = "-m some.gguf -p Hi -n 7 -t 3 -c 99 --temp 0.8 --top-k 40 --top-p 0.9 --min-p 0.1"
    more = "--repeat-penalty 1.1 -s 5 --schedule fused --activations f32 --kv-cache q8"
    more += " --speculate 3"
    assert shell("run", *given.split(), *more.split()) == 0
    loaded = {k: v for k, v in model.loaded.items() if k not in ("progress", "closed")}
    assert loaded == {
        "name": "some.gguf",
        "threads": 3,
        "schedule": "fused",
        "activations": "f32",
        "context": 99,
        "kv_cache": "q8",
        "quantize": None,
        "speculate": 3,
    }
    ((_, messages, sampling),) = model.asked
    assert messages == [{"role": "user", "content": "Hi"}]
    assert sampling == {
        "max_tokens": 7,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "seed": 5,
    }


def test_run_is_greedy_with_128_tokens_by_default(model: FakeModel, shell: Shell) -> None:
    shell("run", "-p", "Hi")
    sampling = model.asked[0][2]
    assert (sampling["temperature"], sampling["max_tokens"], sampling["seed"]) == (0.0, 128, 0)
    assert model.loaded["name"] is None
    assert model.loaded["schedule"] == "tokens"


def test_minus_one_token_means_as_many_as_fit(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi", "-n", "-1") == 0
    assert model.asked[0][2]["max_tokens"] is None


def test_a_random_seed_is_told(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi", "-s", "-1") == 0
    seed = model.asked[0][2]["seed"]
    assert shell.err == f"seed: {seed}\n"
    assert 0 <= seed < 2**32


def test_the_model_is_an_argument_or_an_option(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "a.gguf", "-p", "Hi") == 0
    assert model.loaded["name"] == "a.gguf"
    assert shell("run", "a.gguf", "-m", "b.gguf", "-p", "Hi") == 2
    assert "two models, a.gguf and b.gguf" in shell.err


def test_raw_and_models_without_template_continue_the_text(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Once", "--raw") == 0
    model.has_chat_template = False
    assert shell("run", "-p", "Once") == 0
    assert [(how, what) for how, what, _ in model.asked] == [("generate", "Once")] * 2


def test_a_system_message_comes_first(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi", "--system", "Be brief.") == 0
    assert [message["role"] for message in model.asked[0][1]] == ["system", "user"]


def test_a_system_message_needs_a_template(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi", "--system", "x", "--raw") == 2
    assert "no place for --system" in shell.err
    model.has_chat_template = False
    assert shell("run", "-p", "Hi", "--system", "x") == 2
    assert "has no chat template" in shell.err


@pytest.mark.parametrize(
    ("data", "prompt"),
    [(b"Hi\n", "Hi"), (b"Hi\r\n", "Hi"), (b"two\nlines\n\n", "two\nlines\n"), ("ä".encode(), "ä")],
)
def test_the_prompt_comes_from_stdin(
    model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch, data: bytes, prompt: str
) -> None:
    type_in(monkeypatch, data)
    assert shell("run", "--raw") == 0
    assert model.asked[0][1] == prompt


@pytest.mark.parametrize(
    ("data", "terminal", "reason"),
    [
        (b"", False, "the prompt on stdin is empty"),
        (b"\n", False, "the prompt on stdin is empty"),
        (b"ab\xff", False, "not UTF-8 (byte 2)"),
        (b"Hi", True, "no prompt: give -p TEXT"),
    ],
)
def test_a_prompt_that_is_none(
    model: FakeModel,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    data: bytes,
    terminal: bool,
    reason: str,
) -> None:
    type_in(monkeypatch, data, terminal)
    assert shell("run") == 2
    assert reason in shell.err
    assert model.loaded == {}


def test_an_empty_prompt_may_be_given_on_purpose(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "--raw", "-p", "") == 0
    assert model.asked[0][1] == ""


def test_text_that_ends_its_line_gets_no_second_newline(model: FakeModel, shell: Shell) -> None:
    model.reply = ["a\n"]
    shell("run", "-p", "Hi")
    assert shell.out == "a\n"


def test_no_tokens_at_all(model: FakeModel, shell: Shell) -> None:
    model.reply = []
    assert shell("run", "-p", "Hi", "-n", "0", "--stats") == 0
    assert shell.out == "\n"
    assert shell.err.startswith("0 tokens · loaded in")


def test_statistics_go_to_stderr_when_asked_for(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi", "--stats") == 0
    assert shell.out == "Hello.\n"
    line = shell.err.strip()
    assert line.startswith("3 tokens · ")
    assert "tok/s" in line
    assert "first after" in line
    assert "loaded in 0.10 s, packed 0.20 s, code from cache 0.30 s" in line
    assert line.endswith("finish: stop")


def test_statistics_tell_what_guessing_brought(model: FakeModel, shell: Shell) -> None:
    model.speculate = 3
    assert shell("run", "-p", "Hi", "--stats", "--speculate", "3") == 0
    assert model.loaded["speculate"] == 3
    assert " · 1.50 tokens a step (2 of 5 guesses were right) · " in shell.err


def test_more_guesses_than_there_may_be(model: FakeModel, shell: Shell) -> None:
    assert shell("run", "-p", "Hi", "--speculate", "16") == 2
    assert model.loaded == {}


def test_ctrl_c_stops_with_a_newline_and_130(model: FakeModel, shell: Shell) -> None:
    model.failure = KeyboardInterrupt()
    model.reply = ["One", " two\n"]
    assert shell("run", "-p", "Hi", "--stats") == 130
    assert shell.out == "One two\n\n"
    assert shell.err.strip().endswith("finish: cancelled")
    assert model.loaded["closed"]


def test_a_reader_that_goes_away_cancels_the_generation(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Broken())
    with pytest.raises(SystemExit) as left:
        main(["run", "-p", "Hi"])
    assert left.value.code == 1
    assert model.cancelled


# errors ------------------------------------------------------------------------------------------


ERRORS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.HotloopError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors_are_one_sentence_and_their_exit_code(
    model: FakeModel, shell: Shell, kind: type[errors.HotloopError]
) -> None:
    model.failure = kind("something is wrong; do this.")
    model.reply = []
    assert shell("run", "-p", "Hi") == kind.exit_code
    assert shell.err == "error: something is wrong; do this.\n"


def test_debug_shows_where(model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_DEBUG", "1")
    model.failure = errors.ModelFileError("broken.")
    assert shell("run", "-p", "Hi") == 3
    assert "Traceback" in shell.err
    assert shell.err.endswith("error: broken.\n")


def test_an_exception_nobody_meant_is_a_sentence_too(model: FakeModel, shell: Shell) -> None:
    model.failure = ZeroDivisionError("division by zero")
    assert shell("run", "-p", "Hi") == EXIT_BUG == 70
    assert shell.err.startswith("error: ZeroDivisionError: division by zero: this is a bug")
    assert "HOTLOOP_DEBUG=1" in shell.err
    assert "Traceback" not in shell.err


def test_running_out_of_memory(model: FakeModel, shell: Shell) -> None:
    model.failure = MemoryError()
    assert shell("run", "-p", "Hi") == errors.OutOfMemoryError.exit_code
    assert shell.err.startswith("error: out of memory; ")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["nonsense"], "No such command"),
        (["run", "--nonsense"], "No such option"),
        (["run", "-n", "many"], "-n"),
        (["run", "-n", "-2"], "-n"),
        (["run", "-t", "0"], "--threads"),
        (["run", "--schedule", "slow"], "--schedule"),
        (["run", "--temp", "-1"], "--temp"),
        (["bench", "--rungs", "ops,fast"], "choose from ops, fused"),
        (["bench", "--rungs", ","], "choose from ops, fused"),
        (["diff", "--ids", "1,b"], "separated by commas"),
        (["ir", "--graph", "--after", "loop"], "not both"),
    ],
)
def test_wrong_usage(model: FakeModel, shell: Shell, argv: list[str], reason: str) -> None:
    assert shell(*argv) == 2
    assert shell.err.startswith("error: ")
    assert reason in shell.err
    assert shell.out == ""


def test_settings_are_checked_before_anything_else(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_DEBUGG", "1")
    assert shell("env") == 2
    assert shell.err == "error: unknown setting HOTLOOP_DEBUGG: did you mean HOTLOOP_DEBUG?\n"
    monkeypatch.delenv("HOTLOOP_DEBUGG")
    monkeypatch.setenv("HOTLOOP_DEBUG", "9")
    assert shell("env") == 2
    assert shell.err.startswith("error: HOTLOOP_DEBUG='9': must be between 0 and 5")


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("missing.gguf", 3, "does not exist"),
        ("smolllm", 2, "no model or file is called"),
        (TINY, 4, "has no tokenizer"),
    ],
)
def test_models_that_cannot_run(shell: Shell, name: str, code: int, reason: str) -> None:
    assert shell("run", "-m", name, "-p", "Hi") == code
    assert reason in shell.err
    assert shell.err.count("\n") == 1


# real processes ----------------------------------------------------------------------------------


def test_a_process_answers(default_model: Path) -> None:
    argv = ["run", "-m", str(default_model), "-p", "Say hello.", "-n", "8", "-t", "2"]
    command = [sys.executable, "-m", "hotloop", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""


def test_ctrl_c_ends_a_process_within_a_token(default_model: Path) -> None:
    command = [sys.executable, "-m", "hotloop", "run", "-m", str(default_model), "-n", "-1"]
    running = subprocess.Popen(
        [*command, "--raw", "-p", "1, 2, 3,", "-t", "2", "--stats"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout is not None
    first = os.read(running.stdout.fileno(), 1)
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert (first + out).endswith(b"\n")
    assert b"finish: cancelled" in err
    assert b"Traceback" not in err


def test_a_closed_pipe_is_quiet(default_model: Path) -> None:
    command = f"{sys.executable} -m hotloop run -m {default_model} -n 300 -t 2 --raw -p 'A B C'"
    done = subprocess.run(
        f"{command} | head -c 1", shell=True, capture_output=True, text=True, timeout=PATIENCE
    )
    assert len(done.stdout) == 1
    assert done.stderr == ""
