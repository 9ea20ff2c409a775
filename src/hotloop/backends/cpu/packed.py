"""Weights that a file holds in their packed layout: read straight into the arena.

Reading beats mapping the file and copying (one copy, no page faults on the file), and it lands in
2 MiB pages, which a map of the file does not promise. The sums are checked on the way, while the
bytes are in the cache: they catch bits that flipped and blocks that were lost on disk, not malice.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotloop.ir.types import TensorType
from hotloop.util.errors import ModelFileError

Bytes = NDArray[np.uint8]

CHUNK = 16 << 20
"""Bytes that one thread reads at a time."""


@dataclass(frozen=True)
class Packed:
    """Where the file holds a packed weight, and `checksum` of its bytes."""

    path: Path
    type: TensorType
    offset: int
    nbytes: int
    sum: int


def checksum(data: Bytes) -> int:
    """The sum of `data` as little-endian 64-bit words, modulo 2^64; the last is filled with 0."""
    whole = data.nbytes // 8 * 8
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    return (int(np.add.reduce(data[:whole].view("<u8"), dtype=np.uint64)) + rest) % 2**64


def read_packed(
    weights: Mapping[str, Packed],
    places: Mapping[str, tuple[TensorType, Bytes]],
    threads: int,
    report: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Fill each of `places` with the weight of its name, which must be of the type and size given.

    `report` is told of bytes as they come. Raises `ModelFileError` where a weight is another one,
    where the file is shorter than it said, or where a sum is wrong.
    """
    for name, (type, place) in places.items():
        weight = weights[name]
        if (weight.type, weight.nbytes) != (type, place.nbytes):
            raise ModelFileError(
                f"{weight.path} holds {name} as {weight.type} in {weight.nbytes} bytes, and the "
                f"model needs {type} in {place.nbytes}; convert the model again."
            )
    pieces = [(name, at) for name in places for at in range(0, weights[name].nbytes, CHUNK)]
    paths = {weights[name].path for name in places}
    sums = dict.fromkeys(places, 0)
    with ExitStack() as stack:
        files = {path: stack.enter_context(path.open("rb", buffering=0)) for path in paths}

        def read(piece: tuple[str, int]) -> int:
            name, start = piece
            weight = weights[name]
            target = places[name][1][start : start + CHUNK]
            _fill(target, files[weight.path].fileno(), weight, start)
            report(target.nbytes)
            return checksum(target)

        pool = stack.enter_context(ThreadPoolExecutor(threads))
        for (name, _), found in zip(pieces, pool.map(read, pieces), strict=True):
            sums[name] += found
    for name, found in sums.items():
        if found % 2**64 != weights[name].sum:
            raise ModelFileError(
                f"{weights[name].path} is damaged: the weight {name} is not what was written; "
                "convert the model again."
            )


def _fill(target: Bytes, descriptor: int, weight: Packed, start: int) -> None:
    """Read the weight from its byte `start` on."""
    at = 0
    while at < target.nbytes:
        got = os.preadv(descriptor, [target[at:].data], weight.offset + start + at)
        if got == 0:
            raise ModelFileError(f"{weight.path} ends too early; convert the model again.")
        at += got
