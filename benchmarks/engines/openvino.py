"""OpenVINO GenAI, which reads the same GGUF file (families of llama and qwen, Q4_0 to Q8_0)."""

from typing import Any

import numpy as np
import openvino
import openvino_genai

REQUIRES = "openvino_genai"


class Engine:
    def __init__(self, model: str, threads: int, context: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # a prompt that is asked for twice is read twice
        scheduler.max_num_batched_tokens = context
        self._pipeline = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads
        )
        self.version = f"OpenVINO GenAI ({openvino_genai.__version__})"

    def decode(self, ids: list[int], n: int) -> float:
        return self._generate(ids, n + 1).get_tpot().mean / 1e3 * n

    def prompt(self, ids: list[int]) -> float:
        return self._generate(ids, 1).get_ttft().mean / 1e3

    def facts(self) -> dict[str, Any]:
        return {}

    def _generate(self, ids: list[int], n: int) -> Any:
        """How long `n` tokens after `ids` took: OpenVINO's own account, in milliseconds."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = n
        config.ignore_eos, config.do_sample = True, False
        inputs = np.array([ids], np.int64)
        tokens = openvino_genai.TokenizedInputs(
            openvino.Tensor(inputs), openvino.Tensor(np.ones_like(inputs))
        )
        return self._pipeline.generate(tokens, config).perf_metrics
