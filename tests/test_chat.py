"""hotloop chat: what each typed line does."""

import json
from pathlib import Path
from typing import Any

import pytest
from shell import FakeModel, Shell, type_in

import hotloop.api
from hotloop.util import errors


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake = FakeModel()
    monkeypatch.setattr(hotloop.api, "load", fake.load)
    return fake


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_chat_remembers_the_conversation(
    model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, b"Hi\n\n  \nAgain\n")
    assert shell("chat") == 0
    assert shell.out == "Hello.\nHello.\n"
    assert model.asked[1][1] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again"},
    ]
    assert model.asked[0][2]["max_tokens"] is None


def test_chat_commands(
    model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["/system Be brief.", "Hi", f"/save {tmp_path}/talk.json", "/reset", "Anew", "/system"]
    lines += ["Free", "/help", "/unknown", "/save", f"/save {tmp_path}/no/where", "/exit", "Never"]
    type_in(monkeypatch, "\n".join(lines).encode())
    assert shell("chat", "--system", "At first.") == 0
    asked = [[(m["role"], m["content"]) for m in messages] for _, messages, _ in model.asked]
    assert asked == [
        [("system", "Be brief."), ("user", "Hi")],
        [("system", "Be brief."), ("user", "Anew")],
        [("user", "Anew"), ("assistant", "Hello."), ("user", "Free")],
    ]
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["content"] for message in saved] == ["Be brief.", "Hi", "Hello."]
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]
    for expected in (
        "3 messages saved",
        "the conversation is forgotten",
        "/reset        forget",
        "there is no /unknown",
        "/save needs the name of a file",
        "cannot be written",
    ):
        assert expected in shell.err


def test_chat_goes_on_after_ctrl_c_and_a_full_context(
    model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([errors.ContextError("too long."), KeyboardInterrupt(), None])
    chat = model.chat

    def failing(messages: list[dict[str, str]], **options: Any) -> Any:
        model.failure = next(failures)
        if isinstance(model.failure, errors.ContextError):
            raise model.failure
        return chat(messages, **options)

    model.chat = failing  # type: ignore[method-assign]
    type_in(monkeypatch, b"long\nstopped\nlast\n")
    assert shell("chat") == 0
    assert "error: too long. /reset starts over." in shell.err
    contents = [message["content"] for message in model.asked[-1][1]]
    assert contents == ["stopped", "Hello.", "last"]


def test_chat_goes_on_after_what_is_no_text(
    model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, b"/system \xff\nHi \xff there\nHi\n")
    assert shell("chat") == 0
    assert shell.err.count("that line is not UTF-8") == 2
    assert [message["content"] for message in model.asked[-1][1]] == ["Hi"]


def test_chat_needs_a_template(model: FakeModel, shell: Shell) -> None:
    model.has_chat_template = False
    assert shell("chat") == 2
    assert "has no chat template" in shell.err


def test_chat_prints_speed_after_each_reply(
    model: FakeModel, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, b"Hi\n")
    assert shell("chat", "--stats") == 0
    assert "tok/s" in shell.err
    assert "loaded" not in shell.err
