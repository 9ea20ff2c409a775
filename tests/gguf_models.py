"""The tiny models as GGUF files, as llama.cpp's converter writes them: names, order, numbers.

Names of tensors are the `gguf` package's own. What the converter changes in them is written down
again here, from what it does, not from how hotloop reads it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from conftest import DATA
from safetensors.numpy import load_file

from hotloop.frontends.hf_folder import read_hf_folder
from hotloop.frontends.models import decoder

Tensors = Iterator[tuple[str, np.ndarray]]

#: Folder → architecture in GGUF, where it is not the model type.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "cohere": "command-r",
    "hunyuan_v1_dense": "hunyuan-dense",
    "olmo3": "olmo2",
    "phi": "phi2",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}
PERMUTED = ("llama", "smollm3", "granite", "granitemoe")

#: GGUF's key → the config's, for what is a plain number in both.
NUMBERS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon"),
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": ("logits_scaling", "logit_scale"),
    "use_parallel_residual": "use_parallel_residual",
}


def write(name: str, path: Path, numbers: dict[str, Any] | None = None) -> Path:
    """The tiny model `name` as a GGUF file; `numbers` are metadata besides the usual."""
    config = json.loads((DATA / "tiny" / name / "config.json").read_text())
    kind = config["model_type"]
    architecture = ARCHITECTURES.get(kind, kind)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_numbers(config, architecture), **(numbers or {})}.items():
        _add(writer, f"{architecture}.{key}", value)
    for tensor, values in _tensors(name, config, architecture):
        writer.add_tensor(tensor, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def _numbers(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    found = {}
    for key, theirs in NUMBERS.items():
        for one in (theirs,) if isinstance(theirs, str) else theirs:
            if config.get(one) is not None:
                found[key] = config[one]
    if architecture == "deepseek2":
        whole = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        found |= {
            "attention.head_count_kv": 1,
            "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
            "attention.value_length": config["kv_lora_rank"],
            "attention.key_length_mla": whole,
            "attention.value_length_mla": config["v_head_dim"],
            "attention.kv_lora_rank": config["kv_lora_rank"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_gating_func": 2 if config["model_type"] == "deepseek_v3" else 1,
        }
        for key, theirs in (
            ("attention.q_lora_rank", "q_lora_rank"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
        ):
            if config.get(theirs):
                found[key] = config[theirs]
    if config["model_type"] == "olmo3":
        local = [one == "sliding_attention" for one in config["layer_types"]]
        found["attention.sliding_window_pattern"] = local
    if config.get("use_sliding_window") is False:
        found.pop("attention.sliding_window", None)
    for key in ("embedding_scale", "residual_scale", "attention.scale", "logit_scale"):
        if key in found:
            found[key] = float(found[key])
    if "feed_forward_length" in found and architecture == "gpt-oss":
        found["expert_feed_forward_length"] = found["feed_forward_length"]
    rope = config["rope_parameters"]
    if "full_attention" in rope:
        rope = rope["full_attention"]
    found["rope.freq_base"] = float(rope["rope_theta"])
    head = (
        config.get("qk_rope_head_dim")
        or config.get("head_dim")
        or config["hidden_size"] // config["num_attention_heads"]
    )
    found["rope.dimension_count"] = int(head * rope.get("partial_rotary_factor", 1.0))
    if alpha := rope.get("alpha"):
        found["rope.freq_base"] = rope["rope_theta"] * alpha ** (head / (head - 2))
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] in ("yarn", "longrope"):
        original = rope["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = original
    if rope["rope_type"] == "longrope":
        longer = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        factor = np.sqrt(1 + np.log(longer) / np.log(rope["original_max_position_embeddings"]))
        found["rope.scaling.attn_factor"] = float(factor)
    return found


def _tensors(name: str, config: dict[str, Any], architecture: str) -> Tensors:
    stored = load_file(DATA / "tiny" / name / "model.safetensors")
    change = CHANGES.get(architecture, lambda name, values, config: [(name, values)])
    enum = next(key for key, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names, dense = (
        gguf.get_tensor_name_map(one, config["num_hidden_layers"])
        for one in (enum, gguf.MODEL_ARCH.QWEN3)  # for a dense layer among mixtures of experts
    )
    for theirs, values in _joined(stored).items():
        for tensor, changed in change(theirs, values, config):
            if architecture in PERMUTED and tensor.endswith(("q_proj.weight", "k_proj.weight")):
                heads = "num_attention_heads" if "q_proj" in tensor else "num_key_value_heads"
                changed = permuted(changed, config[heads])
            suffixes = (".weight", ".bias")
            ours = names.get_name(tensor, suffixes) or dense.get_name(tensor, suffixes)
            yield ours or tensor, changed
    if config["rope_parameters"].get("rope_type") == "llama3":
        plain, scaled = (_frequencies(name, one) for one in (True, False))
        yield "rope_freqs.weight", plain / scaled
    for key in ("long", "short"):
        if factors := config["rope_parameters"].get(f"{key}_factor"):
            yield f"rope_factors_{key}.weight", np.array(factors)


def _frequencies(name: str, plain: bool) -> np.ndarray:
    model = decoder(read_hf_folder(DATA / "tiny" / name))
    (rope,) = model.config.ropes
    if not plain:
        return np.array(rope.frequencies)
    theta = model.file.metadata["rope_parameters"]["rope_theta"]
    return theta ** -(np.arange(0, rope.dims, 2) / rope.dims)


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head so that pairs which rotate together are neighbours."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _joined(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one tensor for all experts, as the converter names it."""
    out: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, values in stored.items():
        before, found, after = name.partition(".experts.")
        number, _, rest = after.partition(".")
        if found and number.isdigit():
            experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = values
        else:
            out[name] = values
    for name, each in experts.items():
        out[name] = np.stack([each[i] for i in sorted(each)])
    return out


def _norms_plus_one(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    yield name, values + 1 if name.endswith("norm.weight") else values


def _neox(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    if "query_key_value" in name:
        heads = config["num_attention_heads"]
        by_head = values.reshape(heads, 3, -1, *values.shape[1:])
        values = np.concatenate(
            [by_head[:, part].reshape(-1, *values.shape[1:]) for part in range(3)]
        )
    yield name, values


def _granite(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    if name.endswith("input_linear.weight"):
        layer, half = name.split(".")[2], values.shape[1] // 2
        yield f"blk.{layer}.ffn_gate_exps.weight", values[:, :half]
        yield f"blk.{layer}.ffn_up_exps.weight", values[:, half:]
    else:
        yield name, values


def _gpt_oss(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    layer = "".join(name.split(".")[2:3])
    if name.endswith("experts.gate_up_proj"):
        yield f"blk.{layer}.ffn_gate_exps.weight", values[:, :, 0::2].transpose(0, 2, 1)
        yield f"blk.{layer}.ffn_up_exps.weight", values[:, :, 1::2].transpose(0, 2, 1)
    elif name.endswith("experts.gate_up_proj_bias"):
        yield f"blk.{layer}.ffn_gate_exps.bias", values[:, 0::2]
        yield f"blk.{layer}.ffn_up_exps.bias", values[:, 1::2]
    elif name.endswith("experts.down_proj"):
        yield f"blk.{layer}.ffn_down_exps.weight", values.transpose(0, 2, 1)
    elif name.endswith("experts.down_proj_bias"):
        yield f"blk.{layer}.ffn_down_exps.bias", values
    elif name.endswith("sinks"):
        yield f"blk.{layer}.attn_sinks.weight", values
    else:
        yield name, values


def _deepseek(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    """The second of a layer's two up projections, by heads: keys transposed, and values."""
    layer = "".join(name.split(".")[2:3])
    if name.endswith("kv_b_proj.weight"):
        plain = config["qk_nope_head_dim"]
        by_head = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
        yield f"blk.{layer}.attn_k_b.weight", by_head[:, :plain].transpose(0, 2, 1)
        yield f"blk.{layer}.attn_v_b.weight", by_head[:, plain:]
    elif name.endswith("e_score_correction_bias"):
        yield f"blk.{layer}.exp_probs_b.bias", values
    else:
        yield name, values


def _shared_gate(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    yield name, values.reshape(-1) if name.endswith("shared_expert_gate.weight") else values


CHANGES: dict[str, Callable[..., Any]] = {
    "gemma": _norms_plus_one,
    "gemma2": _norms_plus_one,
    "gemma3": _norms_plus_one,
    "gptneox": _neox,
    "deepseek2": _deepseek,
    "granitemoe": _granite,
    "gpt-oss": _gpt_oss,
    "qwen2moe": _shared_gate,
}
