"""draft, accept, reached, filled: guesses of the next tokens, and which of them were right.

Guessing is serial, but short: one look at the history, which is 3 µs for 8,192 tokens.
"""

from hotloop.ir.ops.speculation import LONGEST, NONE, SHORTEST, guessing
from hotloop.kernels.control import field, read
from hotloop.kernels.emit import publish, ring_bell
from hotloop.kernels.tile import Tile, kernel
from hotloop.lang import (
    Pointer,
    Value,
    Var,
    constant,
    i32,
    i64,
    if_,
    loop,
    minimum,
    store_release,
    while_,
)


@kernel("draft")
def draft(tile: Tile) -> None:
    pos, ring, control = tile.operands
    assert tile.result is not None
    history, out = ring.cast(i32), tile.result.cast(i32)
    at = pos.cast(i32).load().to(i64)
    tokens = int(tile.spec.attr("tokens"))
    for i in loop(tokens, 1):
        out.store(NONE, i)
    out.store(history.load(at), 0)
    source, run = _like(history, at)
    with if_(source >= 0):
        most = Var(minimum(read(control, "last_pos").to(i64) - at, tokens))
        for length in range(SHORTEST, LONGEST + 1):
            with if_(run.equals(length)):
                most.set(minimum(most, guessing(length)))
        for i in loop(most, 1):
            token = history.load(source + i)
            history.store(token, at + i)
            out.store(token, i)


def _like(history: Pointer, at: Value) -> tuple[Value, Value]:
    """Where the longest run ends that is the same as the one that ends at `at` (-1: nowhere), and
    how long it is."""
    best, source = Var(constant(SHORTEST, i64)), Var(constant(NONE, i64))
    last = history.load(at)
    for end in loop(at):
        with if_(history.load(end).equals(last)):
            length = _same(history, end, at)
            with if_(length >= best):
                source.set(end)
                best.set(length)
    return source.get(), best.get()


def _same(history: Pointer, end: Value, at: Value) -> Value:
    """How many tokens up to `end` are those up to `at`, which comes later: 1 … LONGEST."""
    longest = minimum(end + 1, LONGEST)
    length = Var(constant(1, i64))

    def goes_on() -> Value:
        # The loads happen even where the run is at its longest, so they must stay in the ring.
        before = history.load(end - minimum(length, end))
        return (length < longest) & before.equals(history.load(at - length))

    for _ in while_(goes_on):
        length.set(length + 1)
    return length.get()


@kernel("accept")
def accept(tile: Tile) -> None:
    """As `emit`, it leaves its result alone where the generation goes on."""
    sampled, tokens, ring, pos, control = tile.operands
    assert tile.result is not None
    most = tile.spec.operands[0].shape[0]
    first = pos.cast(i32).load() + 1
    _count(tokens.cast(i32), most, control)
    row, more = Var(constant(0, i64)), Var(constant(1, i32))
    for _ in while_(lambda: more.differs(0)):
        token = sampled.cast(i32).load(row)
        finish = publish(token, first + row.get().to(i32), ring.cast(i32), control)
        with if_(finish.differs(0)):
            store_release(tile.result.cast(i32), 1)
        row.set(row + 1)
        guessed = tokens.cast(i32).load(minimum(row, most - 1)).equals(token)
        more.set((guessed & (row < most) & finish.equals(0)).to(i32))
    ring_bell(control)


def _count(tokens: Pointer, most: int, control: Pointer) -> None:
    """Add this step to the statistics."""
    field(control, "steps").store(read(control, "steps") + 1)
    guesses = Var(read(control, "drafted"))
    for i in loop(most, 1):
        guesses.set(guesses + tokens.load(i).differs(NONE).to(i32))
    field(control, "drafted").store(guesses.get())


@kernel("reached")
def reached(tile: Tile) -> None:
    assert tile.result is not None
    tile.result.cast(i32).store((read(tile.operands[0], "published") - 1).to(i32))


@kernel("filled")
def filled(tile: Tile) -> None:
    assert tile.result is not None
    tokens, most = tile.operands[0].cast(i32), tile.spec.operands[0].shape[0]
    count = Var(constant(0, i64))
    for _ in while_(lambda: (count < most) & tokens.load(minimum(count, most - 1)).differs(NONE)):
        count.set(count + 1)
    tile.result.cast(i32).store(count.get().to(i32))
