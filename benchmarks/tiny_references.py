"""Tiny models with random weights, and what transformers computes with them: tests/data/tiny.

    python benchmarks/tiny_references.py [NAME…] [--into tests/data/tiny]

For families of which no other engine has left us an answer. Each folder gets config.json and
model.safetensors as transformers saves them, and reference.json: for inputs of 1, 9 and 48 tokens
the logits at the last position, the log-probability of each next token, the most likely token at
every position, and 24 tokens of greedy decoding. Weights are large enough that leaving a feature
out shows; seeds are tried until greedy decoding never has to choose between near equals.

Needs torch and transformers (made with 2.13.0 and 5.24.0), which hotloop does not depend on.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

LENGTHS = (1, 9, 48)
GREEDY = 24
SMALLEST_MARGIN = 1e-3
EOS = 2

COMMON = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "intermediate_size": 40}
MLA = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "head_dim": 4,
}

#: Folder → model type and what its config says beyond `COMMON`, or leaves out of it (...).
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", {"head_dim": 12, "num_key_value_heads": 1}),
    "starcoder2": (
        "starcoder2",
        {"use_bias": True, "sliding_window": 10, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gpt_neox": (
        "gpt_neox",
        {
            "rotary_pct": 0.5,
            "hidden_act": "gelu",
            "use_parallel_residual": True,
            "tie_word_embeddings": False,
            "num_key_value_heads": ...,
            "head_dim": ...,
        },
    ),
    "gpt_neox_sequential": (
        "gpt_neox",
        {
            "rotary_pct": 0.25,
            "hidden_act": "gelu",
            "use_parallel_residual": False,
            "num_key_value_heads": ...,
            "head_dim": ...,
        },
    ),
    "cohere2": (
        "cohere2",
        {"num_hidden_layers": 5, "sliding_window": 8, "logit_scale": 0.5, "layer_norm_eps": 1e-5},
    ),
    "glm4": ("glm4", {"attention_bias": True, "partial_rotary_factor": 0.5}),
    "exaone4": (
        "exaone4",
        {"num_hidden_layers": 5, "sliding_window": 8, "sliding_window_pattern": 4},
    ),
    "phi3_longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 40,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.1, 1.3, 1.6],
                "long_factor": [1.0, 1.5, 3.0, 7.0],
            },
        },
    ),
    "mixtral": (
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        EXPERTS
        | {
            "num_experts": 6,
            "shared_expert_intermediate_size": 24,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
        },
    ),
    "granitemoe": (
        "granitemoe",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 16,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.7,
            "logits_scaling": 1.6,
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        EXPERTS | MLA | {"q_lora_rank": None, "norm_topk_prob": False, "topk_method": "greedy"},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        EXPERTS
        | MLA
        | {
            "q_lora_rank": 12,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
        },
    ),
}


def fill(model: PreTrainedModel, seed: int) -> None:
    """Random weights of a size at which every part of the model matters."""
    random = torch.Generator().manual_seed(seed)
    one = 0.0 if model.config.model_type.startswith("gemma") else 1.0  # stored less one there
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name or not value.ndim:  # gemma has its embedding scale as a buffer
            continue
        noise = torch.randn(value.shape, generator=random)
        if value.ndim == 1:
            data = one + 0.2 * noise if name.endswith("weight") else 0.3 * noise
        else:
            gain = (
                1.5 if any(part in name for part in ("q_proj", "k_proj", "qkv", "query")) else 1.2
            )
            data = gain / value.shape[-1] ** 0.5 * noise
        with torch.no_grad():
            value.copy_(data)


def case(model: PreTrainedModel, ids: list[int]) -> dict[str, Any]:
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].double()
        logprobs = torch.log_softmax(logits, -1)
        greedy, margins = list(ids), []
        for _ in range(GREEDY):
            last = model(torch.tensor([greedy]), use_cache=False).logits[0, -1]
            best = torch.topk(last, 2).values
            margins.append(float(best[0] - best[1]))
            greedy.append(int(last.argmax()))
    return {
        "input_ids": ids,
        "logits_last": [float(f"{x:.6g}") for x in logits[-1].tolist()],
        "logprob_of_next": [float(f"{logprobs[i, ids[i + 1]]:.6g}") for i in range(len(ids) - 1)],
        "argmax": logits.argmax(-1).tolist(),
        "greedy_ids": greedy[len(ids) :],
        "min_top2_margin": min(margins),
    }


def make(name: str, folder: Path) -> None:
    kind, changes = MODELS[name]
    numbers = {key: value for key, value in (COMMON | changes).items() if value is not ...}
    config = AutoConfig.for_model(kind, **numbers)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for seed in range(1000):
        fill(model, seed)
        random = np.random.default_rng(seed)
        inputs = [random.integers(3, config.vocab_size, n).tolist() for n in LENGTHS]
        cases = [case(model, ids) for ids in inputs]
        clear = all(one["min_top2_margin"] >= SMALLEST_MARGIN for one in cases)
        if clear and not any(EOS in one["greedy_ids"] for one in cases):
            break
    else:
        raise SystemExit(f"{name}: no seed gives clear answers")
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    about = {"model_type": kind, "seed": seed, "cases": cases}
    (folder / "reference.json").write_text(json.dumps(about))
    size = (folder / "model.safetensors").stat().st_size
    print(f"{name}: seed {seed}, {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(MODELS), help="default: all")
    parser.add_argument("--into", type=Path, default=Path("tests/data/tiny"))
    options = parser.parse_args()
    for name in options.names:
        make(name, options.into / name)


if __name__ == "__main__":
    main()
