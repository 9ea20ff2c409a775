"""Settings: read from the environment, checked, and never silently misspelt."""

from pathlib import Path

import pytest

from hotloop.util import settings
from hotloop.util.errors import SettingError


def test_defaults_hold_where_the_variable_is_unset_or_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for setting in settings.ALL:
        monkeypatch.delenv(setting.name, raising=False)
        assert setting.get() == setting.default
        monkeypatch.setenv(setting.name, "")
        assert setting.get() == setting.default


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.DEBUG, "5", 5),
        (settings.CODE_CACHE, "0", 0),
        (settings.THREADS, "1024", 1024),
        (settings.WATCHDOG, "0.5", 0.5),
        (settings.WAKE, "spinning", "spinning"),
        (settings.TARGET, "portable", "portable"),
        (settings.CACHE, "/some/where", Path("/some/where")),
    ],
)
def test_values_are_read(
    monkeypatch: pytest.MonkeyPatch, setting: settings.Setting, text: str, value: object
) -> None:
    monkeypatch.setenv(setting.name, text)
    assert setting.get() == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("DEBUG", "6", "must be between 0 and 5"),
        ("DEBUG", "-1", "must be between 0 and 5"),
        ("DEBUG", "yes", "invalid literal"),
        ("CODE_CACHE", "2", "must be between 0 and 1"),
        ("THREADS", "1e3", "invalid literal"),
        ("WATCHDOG", "0", "must be between 0.1 and 86400"),
        ("WATCHDOG", "nan", "must be between"),
        ("WAKE", "Parked", "must be one of parked, spinning"),
        ("TARGET", "gpu", "must be one of native, portable"),
    ],
)
def test_bad_values_are_errors_that_name_variable_and_reason(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, reason: str
) -> None:
    monkeypatch.setenv(f"HOTLOOP_{name}", text)
    with pytest.raises(SettingError, match=reason) as caught:
        getattr(settings, name).get()
    assert str(caught.value).startswith(f"HOTLOOP_{name}='{text}': ")


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(SettingError, match=r"HOTLOOP_THREAD: did you mean HOTLOOP_THREADS\?"):
        settings.check_environment({"PATH": "/bin", "HOTLOOP_THREAD": "2"})


def test_an_unknown_name_gets_the_list() -> None:
    with pytest.raises(SettingError, match="known: HOTLOOP_CACHE, "):
        settings.check_environment({"HOTLOOP_ZZZZZZZZZZZZZZZZ": "1"})


def test_known_names_and_other_programs_variables_pass() -> None:
    settings.check_environment({setting.name: "" for setting in settings.ALL})
    settings.check_environment({"HOT": "1", "MY_HOTLOOP_X": "1"})


def test_every_setting_is_declared_once_and_has_help() -> None:
    names = [setting.name for setting in settings.ALL]
    assert len(set(names)) == len(names)
    declared = {value for value in vars(settings).values() if isinstance(value, settings.Setting)}
    assert declared == set(settings.ALL)
    assert all(name.startswith("HOTLOOP_") for name in names)
    assert all(setting.help for setting in settings.ALL)


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTLOOP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert settings.cache_dir() == Path("/xdg/hotloop")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert settings.cache_dir() == Path("/home/somebody/.cache/hotloop")
    monkeypatch.setenv("HOTLOOP_CACHE", "/mine")
    assert settings.cache_dir() == Path("/mine")
