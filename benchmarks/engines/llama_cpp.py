"""llama.cpp through llama-cpp-python: its C functions, without the package's Python around them."""

import ctypes
import time
from typing import Any

import llama_cpp

REQUIRES = "llama_cpp"
#: llama.cpp's own default: tokens of a prompt that are read at once.
BATCH = 512


class Engine:
    def __init__(self, model: str, threads: int, context: int) -> None:
        self._llama = llama_cpp.Llama(
            model,
            n_ctx=context,
            n_batch=BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._context = self._llama.ctx
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._greedy = llama_cpp.llama_sampler_init_greedy()
        self._cached: list[int] = []
        self.version = f"llama.cpp ({llama_cpp.__version__})"

    def decode(self, ids: list[int], n: int) -> float:
        self._prefill(ids[:-1])
        token = ids[-1]
        started = time.perf_counter()
        for _ in range(n):
            token = self._step([token])
        return time.perf_counter() - started

    def prompt(self, ids: list[int]) -> float:
        self._prefill([])
        started = time.perf_counter()
        self._read(ids)
        self._cached = ids
        return time.perf_counter() - started

    def facts(self) -> dict[str, Any]:
        return {"system": llama_cpp.llama_print_system_info().decode()}

    def _prefill(self, ids: list[int]) -> None:
        """The cache holds exactly `ids` afterwards; what it held of them already is kept."""
        same = len(ids) if self._cached[: len(ids)] == ids else 0
        llama_cpp.llama_memory_seq_rm(self._memory, 0, same, -1)
        if same < len(ids):
            self._read(ids)
        self._cached = ids

    def _read(self, ids: list[int]) -> None:
        for start in range(0, len(ids), BATCH):
            self._step(ids[start : start + BATCH])

    def _step(self, ids: list[int]) -> int:
        """Take in `ids`; the most likely token after them."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(
            ctypes.cast(tokens, ctypes.POINTER(llama_cpp.llama_token)), len(ids)
        )
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode of {len(ids)} tokens failed with status {status}")
        return int(llama_cpp.llama_sampler_sample(self._greedy, self._context, -1))
