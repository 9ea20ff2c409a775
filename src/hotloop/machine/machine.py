"""Machine: what the passes may know of the hardware, as plain data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One machine.

    `cores` are the threads of the team; `tile_bytes` is how much weight data one tile should
    hold: enough to make a claim (some 50 ns) cheap, little enough that the last tiles of a stage
    end together.
    """

    name: str
    cores: int
    tile_bytes: int = 24 * 1024
