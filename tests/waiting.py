"""Waiting, for tests: patient, so that only what never happens fails on a slow machine."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds before something that takes a moment counts as never happening.
PATIENCE = 240.0


def wait_until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until `holds()`; fail after `patience` seconds."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {patience:.0f} s"
        time.sleep(0.002)
