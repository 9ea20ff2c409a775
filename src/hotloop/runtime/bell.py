"""Bell: how a launch wakes whoever waits for its tokens.

A launch needs every core, and whoever looks at it takes one away, with caches that the weights have
emptied. So nobody looks before there is something to see: the step's last op writes a byte into a
pipe, on which an event loop can wait for tokens as for everything else.
"""

import contextlib
import os
import select
import weakref

#: As many rings as are heard at once.
_MANY = 4096


class Bell:
    """A pipe that is readable once it has rung, until it is silenced."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        for end in (self._reads, self._writes):
            os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(self._reads, select.POLLIN)
        self.close = weakref.finalize(self, _close, self._reads, self._writes)
        self.close.atexit = False  # a launch may still be running then

    def fileno(self) -> int:
        """What to wait on."""
        return self._reads

    @property
    def address(self) -> int:
        """What a control block's `bell` says."""
        return self._writes + 1

    def ring(self) -> None:
        """What machine code does without Python."""
        with contextlib.suppress(BlockingIOError):  # so often that nobody need be told again
            os.write(self._writes, b"!")

    def wait(self) -> None:
        """Until it rings, or has rung since it was silenced; it is silent then."""
        self._poll.poll()
        self.silence()

    def silence(self) -> None:
        try:  # noqa: SIM105 (three calls more between two tokens)
            os.read(self._reads, _MANY)
        except BlockingIOError:
            pass  # it had not rung


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
