"""Memory for weights, state and work: page-aligned, in 2 MiB pages where the system has them.

Big pages matter: a weight stream that walks through 4 KiB pages misses the TLB all the time, and
measured 20% slower here. What is small does without them: a page is there as a whole once a byte of
it is touched, and most of a KV cache or of a prompt's work space is not, at first (60 MB of a model
with 1B weights, and a tenth of a second to its first token).
"""

import contextlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotloop.util.errors import OutOfMemoryError

HUGE_PAGE = 2 << 20
#: Bytes from which on memory is in big pages.
LARGE = 40 << 20


class Arena:
    """Zeroed memory of its own: `data` is a uint8 view of it, `address` where it starts."""

    def __init__(self, nbytes: int, what: str) -> None:
        check_available(nbytes, what)
        try:
            self._map = _map(nbytes + HUGE_PAGE)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemoryError(
                f"cannot get {megabytes(nbytes)} for {what} ({error}); use a shorter context or a "
                "smaller model."
            ) from None
        if nbytes >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._map, np.uint8)
        shift = -whole.ctypes.data % HUGE_PAGE
        self.data: NDArray[np.uint8] = whole[shift : shift + nbytes]
        self.address: int = self.data.ctypes.data


def _map(nbytes: int) -> mmap.mmap:
    """Memory of this process alone.

    Python maps memory to share with children, if not told otherwise, and of that Linux gives no
    big pages unless an administrator has asked for them (`shmem_enabled`).
    """
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, nbytes)


def check_available(nbytes: int, what: str) -> None:
    """Raise `OutOfMemoryError` where the system says that it does not have so much memory left.

    Linux hands out address space freely and kills processes later; a sentence now is better.
    """
    available = available_bytes()
    if available is not None and nbytes > available:
        raise OutOfMemoryError(
            f"{what} needs {megabytes(nbytes)} and {megabytes(available)} are available; use a "
            "shorter context or a smaller model."
        )


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that can be used without swapping; None where the system does not tell."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
