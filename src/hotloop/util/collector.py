"""Python's cyclic garbage collector, out of the way of work that makes many objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_once() -> Iterator[None]:
    """Collect what the work within leaves at its end, and not again and again while it grows.

    A third of the time of tracing a program, and a fifth of that of building a vocabulary, went
    into looking through objects that were still in use.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # all that is new is in the youngest generation
        gc.enable()
