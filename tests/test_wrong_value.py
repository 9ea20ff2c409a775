"""Wrong values on the command line: what was given and what must be, in one sentence."""

import pytest

from hotloop.cli.main import main

WRONG = [
    (["run", "-t", "x"], "--threads is 'x'; it must be a whole number."),
    (["run", "--threads", "1.5"], "--threads is '1.5'; it must be a whole number."),
    (["run", "-t", "0"], "--threads is '0'; it must be at least 1."),
    (["run", "-t", "1025"], "--threads is '1025'; it must be at most 1024."),
    (["run", "-t", "9" * 5000], "it must be a whole number of fewer digits."),
    (["run", "--temp", "warm"], "--temp is 'warm'; it must be a number."),
    (["run", "--temp", "nan"], "--temp is 'nan'; it must be at least 0."),
    (["run", "--top-p", "1.5"], "--top-p is '1.5'; it must be at most 1."),
    (["run", "-c", "0"], "--context is '0'; it must be at least 1."),
    (["run", "--schedule", "fast"],
     "--schedule is 'fast'; it must be one of ops, fused, looped, pipelined, tokens."),
    (["predict", "m", "--acceptance", "2"], "--acceptance is '2'; it must be at most 1."),
    (["predict", "m", "--orchestration", ""],
     "--orchestration is ''; it must be one of hardware, software."),
    (["validate", "--measure", "m", "--rounds", "0"], "--rounds is '0'; it must be at least 1."),
    (["validate", "--measure", "m", "-t", "2", "-t", "x"],
     "--threads is 'x'; it must be a whole number."),
    (["run", "--no-such-option"], "No such option: --no-such-option; see hotloop --help."),
    (["predict"], "Missing argument 'MODEL'; see hotloop --help."),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=[" ".join(a)[:40] for a, _ in WRONG])
def test_what_was_given_and_what_must_be(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith(f"{sentence}\n")
    assert err.count("\n") == 1
    assert "Value error" not in err
    assert "Input should" not in err
