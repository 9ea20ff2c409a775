"""From an LLVM module to callable addresses, by way of an object file that is kept on disk.

The cache is keyed by everything that the object depends on: the target, the optimisation level,
the version of llvmlite, and the module's text or, so that what is on disk need not even be traced
(0.3 s of a start), what the text follows from: hotloop's source and a recipe. A file that cannot be
read, or whose checksum is wrong, is compiled again; a cache that cannot be written is no reason to
fail.
"""

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from hotloop.lang import Module, Target
from hotloop.util import settings
from hotloop.util.collector import collected_once

OPTIMISATION = 3


@dataclass(frozen=True)
class Code:
    """Loaded machine code: keep it as long as an address of it is in use."""

    tracker: llvm.ResourceTracker
    object_bytes: int
    seconds: float
    """What compiling took, or reading from the cache."""
    cached: bool

    def address(self, name: str) -> int:
        return int(self.tracker[name])


def load(module: Module, exports: tuple[str, ...]) -> Code:
    """Compile `module` (or find its object on disk) and load it."""
    text = str(module)
    path = _cache_path(text, module.target)
    return _load(_read(path), text, path, module.target, module.name, exports)


def load_recipe(
    recipe: str,
    trace: Callable[[], Module],
    target: Target,
    name: str,
    exports: tuple[str, ...],
) -> Future[Code]:
    """The same, where `trace` makes the module and `recipe` says all that it makes it from.

    `trace` is called here, if at all. The rest goes on in a thread of its own: LLVM does not need
    the interpreter, which meanwhile has the next program to trace, or a tokenizer to build.
    """
    path = _cache_path(f"{source_digest()} {recipe}", target)
    image = _read(path)
    text = ""
    if image is None:
        with collected_once():
            text = str(trace())
    _engine()  # made here, so that no two threads make one
    thread = ThreadPoolExecutor(1, "hotloop-compile")
    loading = thread.submit(_load, image, text, path, target, name, exports)
    thread.shutdown(wait=False)
    return loading


def _load(
    image: bytes | None,
    text: str,
    path: Path | None,
    target: Target,
    name: str,
    exports: tuple[str, ...],
) -> Code:
    """Load an object, or (None) first compile it from `text` and put it on disk."""
    started = time.perf_counter()
    cached = image is not None
    if image is None:
        image = compile_object(text, target)
        if path:
            _write(path, image)
    builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
    for symbol in exports:
        builder.export_symbol(symbol)
    # A library's name must be new in its process, whatever was loaded and dropped before.
    tracker = builder.link(_engine(), f"{name}.{next(_numbers)}")
    return Code(tracker, len(image), time.perf_counter() - started, cached)


_numbers = itertools.count()


@cache
def source_digest() -> str:
    """A digest of hotloop's source: whoever changes it, changes the code it makes."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compile_object(text: str, target: Target) -> bytes:
    """An object file from the text of a module."""
    machine = target_machine(target)
    return bytes(machine.emit_object(optimise(text, target, machine)))


def assembly(text: str, target: Target) -> str:
    """The assembly of a module, to look at."""
    machine = target_machine(target)
    return str(machine.emit_assembly(optimise(text, target, machine)))


def optimise(text: str, target: Target, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    parsed = llvm.parse_assembly(text)
    parsed.data_layout = str(machine.target_data)
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=OPTIMISATION)
    # Kernels say themselves what is a vector and which loops are unrolled. LLVM's own ideas beyond
    # that took a fifth of the time and of the code, and made no program faster.
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


@cache
def target_machine(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.feature_string,
        opt=OPTIMISATION,
        reloc="pic",
        codemodel="small",
    )


@cache
def _engine() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True)


def _cache_path(key: str, target: Target) -> Path | None:
    if not settings.CODE_CACHE.get():
        return None
    digest = hashlib.sha256()
    for part in (llvmlite.__version__, str(OPTIMISATION), target.cpu, target.feature_string, key):
        digest.update(part.encode())
        digest.update(b"\0")
    return settings.cache_dir() / "code" / f"{digest.hexdigest()[:40]}.o"


CHECKSUM = 32


def _read(path: Path | None) -> bytes | None:
    """The object in the cache; None where there is none, or it is not what was written."""
    if path is None:
        return None
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    image = stored[CHECKSUM:]
    return image if hashlib.sha256(image).digest() == stored[:CHECKSUM] else None


ABANDONED = 3600
"""Seconds after which no process still writes a file: the one that began it was killed."""


def _write(path: Path, image: bytes) -> None:
    """Put the object in place in one step, so that no reader sees half of it."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        part.write_bytes(hashlib.sha256(image).digest() + image)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()


def _remove_abandoned(folder: Path) -> None:
    """Delete the parts that killed processes left."""
    for part in folder.glob("*.part"):
        with contextlib.suppress(OSError):  # another process was faster
            if part.stat().st_mtime < time.time() - ABANDONED:
                part.unlink()
