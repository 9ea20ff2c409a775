"""Compile a kernel-language module for this machine and call it: what tests of kernels share."""

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from hotloop.kernels.tile import OpSpec, buffer_bytes, define
from hotloop.lang import Module, Target


def machine_for(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=3
    )


def optimise(module: Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def assembly(module: Module) -> str:
    """The text of `module` compiled for its own target, whatever this machine is."""
    machine = machine_for(module.target)
    return machine.emit_assembly(optimise(module, machine))


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
    """Bytes aligned to 64; the default fill reads as NaN in every float format."""
    raw = np.full(nbytes + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


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
        scratch = aligned(1 << 16)
        addresses = [buffer.ctypes.data for buffer in buffers]
        self._call(*addresses, lo, hi, count, scratch.ctypes.data)

    def result(self) -> np.ndarray:
        """A fresh buffer for the result, full of NaN."""
        assert self.spec.result is not None
        return aligned(buffer_bytes(self.spec.result))
