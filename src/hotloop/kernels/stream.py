"""Reading packed weights at the speed of memory."""

from hotloop.lang import Pointer, prefetch

AHEAD = 1024
"""Bytes between what is read and what is prefetched."""

_LINE = 64


def prefetch_ahead(position: Pointer, nbytes: int) -> None:
    """Prefetch what lies `AHEAD` of the `nbytes` bytes from `position` on.

    It may run past the end of a buffer: a prefetch never faults.
    """
    for offset in range(0, nbytes, _LINE):
        prefetch(position.at(AHEAD + offset))
