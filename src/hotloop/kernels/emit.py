"""emit, advance: what ends a step."""

from hotloop.ir.types import CONTROL
from hotloop.kernels.cache import position_of
from hotloop.kernels.control import field, read
from hotloop.kernels.tile import Tile, kernel
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    as_value,
    call,
    constant,
    current,
    i32,
    i64,
    if_,
    load_relaxed,
    loop,
    minimum,
    ptr,
    select,
    store_release,
)

LENGTH, STOP_TOKEN, CANCELLED = 1, 2, 3
"""Values of the control block's `finish`."""


@kernel("emit")
def emit(tile: Tile) -> None:
    """Publish each token for its position pos + 1; write 1 to the result if a generation ends.

    Where all go on, the result is left alone; the runtime zeroes it before a launch. A 0 written
    at each step could take back the 1 that a slower thread has yet to read; so it only ever goes
    from 0 to 1, and a thread that reads it late, or more than once, sees the same end.
    """
    tokens, ring, pos, control = tile.operands
    capacity = tile.spec.operands[1].shape[1]
    assert tile.result is not None
    for row in loop(tile.count):
        token = tokens.cast(i32).load(row)
        at = position_of(pos, tile.spec.operands[2], row).to(i32) + 1
        finish = publish(
            token, at, ring.cast(i32).at(row * capacity), control.at(row * CONTROL.itemsize)
        )
        with if_(finish.differs(0)):
            store_release(tile.result.cast(i32), 1)
    ring_bell(control)


def ring_bell(control: Pointer) -> None:
    """Wake whoever waits for tokens: a system call that does not block, if anybody has asked.

    What is written says nothing. Where nobody reads, the pipe is full one day; then it is readable
    all the same.
    """
    bell = read(control, "bell")
    with if_(bell > 0):
        write = current().module.declare("write", i64, [i32, ptr, i64])
        call(write, [bell - 1, control, 1])


def publish(token: Value, at: Value, ring: Pointer, control: Pointer) -> Value:
    """Hand one sequence its token; how its generation ends with it, or 0."""
    ring.store(token, at.to(i64))
    store_release(field(control, "published"), at.to(i64) + 1)
    finish = select(
        _stops(control, token),
        constant(STOP_TOKEN, i32),
        select(
            at >= read(control, "last_pos"),
            constant(LENGTH, i32),
            select(load_relaxed(field(control, "cancel")).differs(0), constant(CANCELLED, i32), 0),
        ),
    )
    with if_(finish.differs(0)):
        # After `published`, so that whoever sees the end sees the last token too.
        store_release(field(control, "finish"), finish)
    return finish


def _stops(control: Pointer, token: Value) -> Value:
    """Whether the token is one of the valid stop ids."""
    assert CONTROL.fields is not None
    (most,) = CONTROL.fields["stop_ids"][0].shape
    valid = minimum(read(control, "stop_count"), most).to(i64)
    found = Var(as_value(0, i32))
    for i in loop(valid):
        stop = field(control, "stop_ids").load(i)
        found.set(select(stop.equals(token), constant(1, i32), found))
    return found.differs(0)


@kernel("advance")
def advance(tile: Tile) -> None:
    assert tile.result is not None
    for row in loop(tile.spec.operands[0].shape[0]):
        tile.result.cast(i32).store(tile.operands[0].cast(i32).load(row) + 1, row)
