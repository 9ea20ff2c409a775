"""A bell: whoever waits is woken, however often it rang, and by whom."""

import contextlib
import os
import select
import threading

import numpy as np
from jit import aligned, buffer_of, tile_function
from test_emit import EMIT, control_block
from waiting import PATIENCE

from hotloop.runtime.bell import Bell


def rings(bell: Bell) -> bool:
    return bool(select.select([bell], [], [], 0)[0])


def test_it_rings_until_it_is_silenced() -> None:
    bell = Bell()
    bell.silence()  # nothing to silence
    assert not rings(bell)
    bell.ring()
    bell.ring()
    assert rings(bell)
    bell.silence()
    assert not rings(bell)


def test_ringing_never_waits() -> None:
    bell = Bell()
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    assert rings(bell)
    bell.ring()


def test_waiting_ends_with_a_ring_before_or_after() -> None:
    bell = Bell()
    bell.ring()
    bell.wait()
    assert not rings(bell)
    waiter = threading.Thread(target=bell.wait)
    waiter.start()
    bell.ring()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()


def test_it_gives_its_files_back() -> None:
    bell = Bell()
    ends = bell.fileno(), bell.address - 1
    pipe = os.fstat(bell.fileno()).st_ino
    bell.close()
    for end in ends:
        with contextlib.suppress(OSError):
            assert os.fstat(end).st_ino != pipe  # another thread may have taken the number


def emit(control: np.ndarray) -> None:
    values = (np.int32([5]), np.zeros(16, np.int32), np.int32([3]))
    buffers = [buffer_of(value) for value in (*values, control)]
    tile_function(EMIT)(buffers, aligned(64, fill=0), 0, 1, 1)


def test_machine_code_rings_it_where_the_control_block_says_so() -> None:
    bell = Bell()
    emit(control_block())
    assert not rings(bell)
    emit(control_block(bell=bell.address))
    assert rings(bell)
