"""A short slice of time for the thread that answers.

The engine's threads need all cores, so whoever wants to run for a moment at each token has to be
let in between them. Linux (since 6.12) lets a thread say how long it runs at a time, and lets the
one with the shorter slice go first; the others wait for the next tick, which is up to 4 ms away and
more than a token takes. Where the system knows nothing of that, nothing happens.
"""

import ctypes
import os
import platform
import struct

SLICE_NS = 100_000
SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_KEEP_POLICY = 0x08
#: struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def take_short_slices() -> None:
    """From now on, for the calling thread."""
    number = SYS_SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, nice, 0, SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
