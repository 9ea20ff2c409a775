"""Reading long streams at the speed of memory.

The hardware's prefetchers stop at the end of each 4 KiB page, and the instructions that unpack
weights leave the core's window too short to cover the latency of memory by itself. So lines are
asked for twice: far ahead into the second-level cache, which waits for memory, then near into the
first. Of a plain read's speed, weights came at 55% without prefetch, at 80–90% with one level at
its best distance, and at 85–100% with both (4 and 8 bit, 576 to 8,192 columns, 100 and 500 MB, one
and two threads, an Intel server CPU). Twice as far into the second level was another tenth better
where the cores had other work, four times as far no more than that (docs/benchmarks.md).
"""

from dataclasses import dataclass

from hotloop.lang import Pointer, Value, prefetch

NEAR = 2048
"""Bytes between what is read and what is on its way into the first-level cache."""
FAR = 16384
"""The same for the second-level cache."""

_LINE = 64


def prefetch_ahead(position: Pointer, nbytes: int) -> None:
    """Prefetch what lies `NEAR` and `FAR` ahead of the `nbytes` bytes from `position` on.

    It may run past the end of a buffer: a prefetch never faults.
    """
    for offset in range(0, nbytes, _LINE):
        prefetch(position.at(NEAR + offset), locality=3)
        prefetch(position.at(FAR + offset), locality=2)


def line_share(nbytes: int, count: int, number: int) -> int:
    """Where share `number` of `count` of `nbytes` bytes begins, in whole cache lines."""
    return -(-nbytes // _LINE) * number // count * _LINE


@dataclass(frozen=True)
class Share:
    """What one of several passes over the same weights asks for of those that come after them.

    With many tokens, memory has time: it is enough that the next weights are in the second-level
    cache when the last pass over these ends, so each step of each pass asks for a little.
    """

    position: Pointer
    """Where the share of this pass begins."""
    nbytes: int
    """Bytes for each step of the pass."""

    def prefetch(self, step: Value) -> None:
        for offset in range(0, self.nbytes, _LINE):
            prefetch(self.position.at(step * self.nbytes + offset), locality=2)


def share_of(following: Pointer, nbytes: int, steps: int, passes: int, number: Value) -> Share:
    """The share of pass `number` in the `nbytes` bytes at `following`, in whole cache lines."""
    each = -(-nbytes // (_LINE * steps * passes)) * _LINE
    return Share(following.at(number * (steps * each)), each)
