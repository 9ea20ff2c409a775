"""Fixtures that several test files share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from waiting import PATIENCE

import hotloop

if TYPE_CHECKING:
    import openai
    from playwright.sync_api import Browser
    from serving import Running

DATA = Path(__file__).parent / "data"
TINY = ("llama", "llama_tied", "llama3_rope")
#: What programs take from their surroundings: tests and the processes that they start have the
#: same, whoever runs them. Nothing counts as hanging that may only wait for its turn.
SURROUNDINGS = {"COLUMNS": "80", "LINES": "24", "HOTLOOP_WATCHDOG": f"{PATIENCE:g}"}
COLOURS = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS")

# One tree, one answer: no example is drawn by chance, and none fails for being slow.
settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in COLOURS:
            patch.delenv(name, raising=False)
        for name, value in SURROUNDINGS.items():
            patch.setenv(name, value)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As in a shell's background; the processes that tests start would inherit it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched into the cache where it is not there yet."""
    from hotloop.frontends.store import resolve

    return resolve(None)


@pytest.fixture(scope="session")
def gemma_file() -> Path:
    """Gemma 3 270M's file, where `hotloop pull gemma3-270m` has put it into the cache."""
    from hotloop.frontends.store import MODELS, models_dir

    path = models_dir() / MODELS["gemma3-270m"].file_name
    if not path.exists():
        pytest.skip("gemma3-270m is not in the cache: hotloop pull gemma3-270m")
    return path


@pytest.fixture(scope="session")
def smollm(default_model: Path) -> Iterator[hotloop.Model]:
    """The default model, loaded once: two threads, the whole ladder up to `tokens`."""
    with hotloop.load(default_model, threads=2, context=512) as model:
        yield model


@pytest.fixture(params=TINY)
def tiny(request: pytest.FixtureRequest) -> Path:
    """The folder of each tiny model in turn."""
    return DATA / "tiny" / str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text must be that of tests/golden/name.txt."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest --update-golden, and read it"
        assert text == path.read_text(), "read the difference; --update-golden accepts it"

    return check


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """The served fake model."""
    from serving import running

    with running() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    from serving import connect

    with connect(server) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from browsing import chromium

    with chromium() as browser:
        yield browser
