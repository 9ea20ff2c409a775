"""Compile a kernel-language module for this machine and call it: what tests of kernels share."""

import ctypes
import mmap
import re
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from hotloop.backends.cpu import jit
from hotloop.kernels.tile import KERNELS, OpSpec, buffer_bytes, define, round_up, row_stride
from hotloop.lang import Module, Target
from hotloop.lang.target import host


def machine_for(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=3
    )


def optimise(module: Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """By the passes that programs go through."""
    return jit.optimise(str(module), module.target, machine)


def assembly(module: Module) -> str:
    """The text of `module` compiled for its own target, whatever this machine is."""
    machine = machine_for(module.target)
    return machine.emit_assembly(optimise(module, machine))


def calls(text: str) -> set[str]:
    """The functions that assembly calls, by name or by an address it loads, and has not itself."""
    named = r"\$([a-z_][\w.]*)|\b([a-z_]\w*)@PLT|^\s+(?:callq?|bl)\s+([a-z_][\w.]*)"
    names = {name for found in re.findall(named, text, re.MULTILINE) for name in found if name}
    return {name for name in names if f"\t.type\t{name},@" not in text}


class Jit:
    """The machine code of a module; it lives as long as this object."""

    def __init__(self, module: Module) -> None:
        machine = machine_for(module.target)
        self._engine = llvm.create_mcjit_compiler(optimise(module, machine), machine)
        self._engine.finalize_object()

    def function(self, name: str, *argtypes: type, result: type | None = None) -> Callable:
        address = self._engine.get_function_address(name)
        return ctypes.CFUNCTYPE(result, *argtypes)(address)


def aligned(nbytes: int, fill: int = 0xFF) -> np.ndarray:
    """Bytes aligned to 64, up to a page that cannot be touched: running over ends the process.

    The default fill reads as NaN in every float format.
    """
    pages = round_up(nbytes, mmap.PAGESIZE)
    memory = np.frombuffer(mmap.mmap(-1, pages + mmap.PAGESIZE), np.uint8)
    guard, nothing_allowed = memory.ctypes.data + pages, 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, nothing_allowed) == 0
    start = pages - round_up(nbytes, 64)
    memory[:pages] = fill
    return memory[start : start + nbytes]


class TileFunction:
    """One op's tile function, callable on byte buffers."""

    def __init__(self, spec: OpSpec, target: Target) -> None:
        module = Module("test", target)
        define(module, spec, "tile").linkage = "external"
        self.spec = spec
        self._jit = Jit(module)
        pointers = len(spec.operands) + (spec.result is not None)
        types = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
        self._call = self._jit.function("tile", *types)

    def __call__(
        self, operands: list[np.ndarray], result: np.ndarray | None, lo: int, hi: int, count: int
    ) -> None:
        buffers = operands + ([] if result is None else [result])
        scratch = aligned(KERNELS[self.spec.name].scratch(self.spec))
        addresses = [buffer.ctypes.data for buffer in buffers]
        self._call(*addresses, lo, hi, count, scratch.ctypes.data)

    def result(self) -> np.ndarray:
        """A fresh buffer for the result, full of NaN."""
        assert self.spec.result is not None
        return aligned(buffer_bytes(self.spec.result))


#: This CPU's instructions, and plain vectors: kernels give the same bits on both.
TARGETS = (host(), host(portable=True))


@cache
def tile_function(spec: OpSpec, target: Target = TARGETS[0]) -> TileFunction:
    return TileFunction(spec, target)


def buffer_of(array: np.ndarray) -> np.ndarray:
    """An array that is not an activation, as it lies in memory."""
    buffer = aligned(array.nbytes)
    buffer[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer


def rows_of(x: np.ndarray) -> np.ndarray:
    """An f32[T,N] as it lies in memory, with NaN for padding."""
    tokens, width = x.shape
    buffer = aligned(tokens * row_stride(width) * 4)
    buffer.view(np.float32).reshape(tokens, -1)[:, :width] = x
    return buffer


def from_rows(buffer: np.ndarray, tokens: int, width: int) -> np.ndarray:
    return buffer.view(np.float32).reshape(tokens, -1)[:, :width]


def compute(
    spec: OpSpec,
    operands: list[np.ndarray],
    count: int,
    grain: int = 1,
    targets: tuple[Target, ...] = TARGETS,
) -> np.ndarray:
    """The result's buffer, the same bits for one tile, for the smallest ones, and backwards."""
    results = []
    for target in targets:
        tile = tile_function(spec, target)
        smallest = [(lo, min(lo + grain, spec.rows)) for lo in range(0, spec.rows, grain)]
        for tiles in ([(0, spec.rows)], smallest, smallest[::-1]):
            results.append(tile.result())
            for lo, hi in tiles:
                tile(operands, results[-1], lo, hi, count)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    return results[0]
