"""The cores' own speed: how many 8-bit products they add up, doing nothing else.

What is counted is one multiply and one add as one, by the widest instruction that kernels use for
it, on operands that stay in registers: AMX's full tiles (16 × 16 sums of 64 products) in four
accumulators, or the widest dot product of vectors in twelve, which hides their latency. What it
measures is what a prompt's matrix products could reach if unpacking weights, scaling a block's
integers and memory took no time.
"""

import time

import numpy as np

from hotloop.backends.cpu import jit, shared
from hotloop.backends.cpu.bandwidth import median_rate
from hotloop.backends.cpu.codegen import LAUNCH
from hotloop.backends.cpu.sync import word
from hotloop.backends.cpu.team import Team
from hotloop.lang import (
    Module,
    Pointer,
    Target,
    Value,
    Var,
    current,
    dot4,
    dot4_signed,
    function,
    i8,
    i32,
    i64,
    loop,
    ret,
    u8,
)
from hotloop.lang.target import host
from hotloop.lang.tiles import TileRegister, tile_registers

CHAINS = 12
TILES = 4
_ROWS, _ROW_BYTES = 16, 64
_TILE_BYTES = _ROWS * _ROW_BYTES
#: Bytes of operands and results that a thread may touch, one after the other's.
_MEMORY = CHAINS * _TILE_BYTES
#: Seconds that one launch should take at least, so that waking the team is noise.
LAUNCH_SECONDS = 0.02
_FIRST_STEPS = 10_000


class PeakProbe:
    """Multiplies and adds with all threads of `team`; `gmacs()` is one measurement."""

    def __init__(self, team: Team, target: Target | None = None) -> None:
        self.team = team
        self._memory = np.zeros((team.threads + 1) * _MEMORY, np.uint8)
        self._args = np.array([self._memory.ctypes.data, _FIRST_STEPS], "u8")
        module = Module("peak_probe", target or host())
        self._per_step = define_probe(module)
        self._code = jit.load(module, ("launch",))
        self._launches = np.array([[self._code.address("launch"), self._args.ctypes.data]], "u8")
        self._seconds()  # the first launch wakes the team
        self._args[1] = int(_FIRST_STEPS * max(1.0, LAUNCH_SECONDS / self._seconds()))

    def _seconds(self) -> float:
        context = np.zeros(shared.CONTEXT_WORDS, np.int64)
        started = time.perf_counter()
        self.team.run(context.ctypes.data, self._launches, ("probe",))
        return time.perf_counter() - started

    def gmacs(self) -> float:
        """10^9 multiply-adds per second, of all threads together."""
        steps = self.team.threads * int(self._args[1])
        return steps * self._per_step / self._seconds() / 1e9


def multiply_add_peak(threads: int, target: Target | None = None, seconds: float = 0.5) -> float:
    """10^9 8-bit multiply-adds per second by `threads` threads, with the instructions of `target`.

    That is this CPU where it is None.
    """
    team = Team(threads)
    try:
        return median_rate(PeakProbe(team, target).gmacs, seconds)
    finally:
        team.close()


def define_probe(module: Module) -> int:
    """args: memory for all threads, steps. Returns the multiply-adds of a step."""
    with function(module, "launch", LAUNCH, i64, exported=True) as (_, _, tid, args):
        mine = word(args, 0).load_pointer().at(tid * _MEMORY)
        step = _tiles if module.target.amx else _vectors
        done = step(mine, word(args, 8).load())
        ret(0)
    return done


def _tiles(memory: Pointer, steps: Value) -> int:
    registers = [TileRegister(i, _ROWS, _ROW_BYTES) for i in range(TILES + 2)]
    *sums, a, b = registers
    with tile_registers(registers):
        for register in registers:
            register.load(memory, _ROW_BYTES)
        for _ in loop(steps):
            for total in sums:
                total.multiply(a, b, unsigned=False)
        for i, total in enumerate(sums):
            total.store(memory.at(i * _TILE_BYTES), _ROW_BYTES)
    return TILES * _ROWS * _ROWS * _ROW_BYTES


def _vectors(memory: Pointer, steps: Value) -> int:
    target = current().module.target
    lanes = 64 if target.vnni512 else 16 if target.dotprod else 32
    sums = [Var(memory.cast(i32).load(i * lanes // 4, lanes=lanes // 4)) for i in range(CHAINS)]
    factor = memory.load(0, lanes=lanes)
    for _ in loop(steps):
        for total in sums:
            # Of what it has so far: nothing that a compiler could do once, before the loop.
            other = total.bitcast(i8 * lanes)
            if target.dotprod:
                total.set(dot4_signed(factor.bitcast(i8 * lanes), other, total))
            else:
                total.set(dot4(factor.bitcast(u8 * lanes), other, total))
    for i, total in enumerate(sums):
        memory.cast(i32).store(total.get(), i * lanes // 4)
    return CHAINS * lanes
