"""ONNX Runtime GenAI with its own int4 weights (blocks of 32), from `export_for_peers.py`."""

import json
import time
from typing import Any

import onnxruntime_genai

from export_for_peers import exported

REQUIRES = "onnxruntime_genai"


class Engine:
    def __init__(self, model: str, threads: int, context: int) -> None:
        config = onnxruntime_genai.Config(str(exported(model, "onnx")))
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)
        self._context = context
        self.version = f"ONNX Runtime GenAI ({onnxruntime_genai.__version__}), int4"

    def decode(self, ids: list[int], n: int) -> float:
        generator = self._generator()
        generator.append_tokens(ids)
        generator.generate_next_token()
        started = time.perf_counter()
        for _ in range(n):
            generator.generate_next_token()
        return time.perf_counter() - started

    def prompt(self, ids: list[int]) -> float:
        generator = self._generator()
        started = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        return time.perf_counter() - started

    def facts(self) -> dict[str, Any]:
        return {}

    def _generator(self) -> Any:
        """An empty cache; no token ends the text before the context does."""
        params = onnxruntime_genai.GeneratorParams(self._model)
        length = self._context + 2
        params.set_search_options(do_sample=False, max_length=length, min_length=length)
        return onnxruntime_genai.Generator(self._model, params)
