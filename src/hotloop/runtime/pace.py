"""Pace: when to look for the next tokens of a launch.

A launch needs every core, and whoever looks at it takes one away, with caches that the weights have
emptied. So nobody looks before a step may have ended, as far as the last ones tell.
"""

import time

#: Looks are so far apart where nothing is known yet, and once a step is due.
FIRST_SECONDS, DUE_SECONDS = 0.001, 0.0003
#: How much of a usual step passes before the first look.
SURE = 0.85
#: Nobody sleeps longer than this, whatever a step took.
LONGEST_SECONDS = 0.05


class Pace:
    """Times the steps of one launch."""

    def __init__(self) -> None:
        self._step = 0.0  # seconds of a usual step; 0: not known
        self._last = time.perf_counter()

    def nap(self) -> float:
        """Seconds to sleep before the next look."""
        if not self._step:
            return FIRST_SECONDS
        due = self._last + SURE * self._step - time.perf_counter()
        return min(max(due, DUE_SECONDS), LONGEST_SECONDS)

    def step(self, steps: int) -> None:
        """So many steps have ended since the last call; this is when they were seen."""
        now = time.perf_counter()
        seconds = (now - self._last) / steps
        self._step = min(seconds, self._step) if self._step else seconds
        self._last = now
