"""Weights and activations for tests: the bytes a model file would hold, and what they mean."""

from collections.abc import Callable

import numpy as np
from jit import aligned, rows_of

from hotloop.ir import grouped
from hotloop.ir.formats import dequantise
from hotloop.ir.types import FORMATS, TensorType
from hotloop.kernels.pack import pack, packed_bytes
from hotloop.kernels.tile import q8_stride, round_up

PLAIN = ("f32", "f16", "bf16")
BLOCKS = ("q8_0", "q4_0", "q4_1")
#: Formats that are packed as records, and where their blocks hold float16 numbers.
HALVES = {
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "mxfp4": (),
    "u4_64": (),
    "u8_128": (),
    "f8_32": (),
    "iq2_u": (0,),
    "iq3_s_u": (0,),
}
RECORDS = tuple(HALVES)

#: Where the small integer scales of the K-quants' sub-blocks lie.
_SCALES = {
    "q3_k": (96, 108),
    "q4_k": (4, 16),
    "q5_k": (4, 16),
    "q6_k": (192, 208),
    "iq2_u": (2, 18),
    "iq3_s_u": (2, 18),
}


def encode(values: np.ndarray, type: TensorType) -> np.ndarray:
    """The file's bytes of a plain tensor; bf16 cuts what does not fit."""
    values = values.astype(np.float32)
    if type.format.name == "bf16":
        return (values.view(np.uint32) >> 16).astype("<u2").reshape(-1).view(np.uint8)
    return values.astype(type.format.numpy).reshape(-1).view(np.uint8)


def whole_blocks(format_name: str, columns: int) -> int:
    """At least as many columns, in whole blocks of the format."""
    return round_up(columns, FORMATS[format_name].block)


def blocks_of(data: np.ndarray, type: TensorType) -> np.ndarray:
    return data.reshape(-1, type.format.block_bytes)


def set_half(blocks: np.ndarray, at: int, values: np.ndarray | float) -> None:
    """Write a float16 into every block, from byte `at` on."""
    halves = np.broadcast_to(np.asarray(values, "<f2"), len(blocks))
    blocks[:, at : at + 2] = np.ascontiguousarray(halves)[:, None].view(np.uint8)


def real_weight(type: TensorType, seed: int = 0) -> np.ndarray:
    """The file's bytes of a weight with all quants and scales of both signs."""
    random = np.random.default_rng(seed)
    if not type.format.quantised:
        return encode(random.normal(0, 1, type.shape), type)
    data = random.integers(0, 256, type.nbytes, dtype=np.uint8)
    if type.format.name in HALVES:
        return _with_halves(data, type, lambda n: random.normal(0, 0.01, n))
    set_half(blocks_of(data, type), 0, random.normal(0, 0.1, data.size // type.format.block_bytes))
    if type.format.name == "q4_1":
        set_half(blocks_of(data, type), 2, random.normal(0, 1, len(blocks_of(data, type))))
    return data


def exact_weight(type: TensorType, seed: int = 0) -> np.ndarray:
    """A weight of small integers and halves, so that float32 sums of products are exact."""
    random = np.random.default_rng(seed)
    if not type.format.quantised:
        return encode(random.integers(-8, 9, type.shape), type)
    data = random.integers(0, 256, type.nbytes, dtype=np.uint8)
    if type.format.name in HALVES:
        first, end = _SCALES.get(type.format.name, (0, 0))
        blocks_of(data, type)[:, first:end] &= 3
        return _with_halves(data, type, lambda n: random.choice([-1.0, 0.5, 1.0], n), exact=True)
    blocks = blocks_of(data, type)
    set_half(blocks, 0, random.choice([-1.0, 0.5, 1.0, 2.0], len(blocks)))
    if type.format.name == "q4_1":
        set_half(blocks, 2, random.integers(-6, 7, len(blocks)) / 2)
    return data


def _with_halves(
    data: np.ndarray,
    type: TensorType,
    numbers: Callable[[int], np.ndarray],
    *,
    exact: bool = False,
) -> np.ndarray:
    """`data` with its float16 numbers, or mxfp4's exponents, of a sensible size."""
    blocks = blocks_of(data, type)
    for at in HALVES[type.format.name]:
        set_half(blocks, at, numbers(len(blocks)))
    if type.format.name == "mxfp4":
        blocks[:, 0] = 127 - blocks[:, 0] % 4
    if type.format.name in grouped.FILE:
        fields = data.view(grouped.FILE[type.format.name])
        fields["scale"] = numbers(len(fields))
        if type.format.integers:
            fields["zero"] = data[-len(fields) :] if type.format.name[1] == "8" else 8
        else:
            fields["codes"] &= 0xF7  # no NaN
            if exact:
                fields["codes"] = fields["codes"] & 0xBF | 0x30  # exponents 6 and 7
    return data


def packed(data: np.ndarray, type: TensorType) -> np.ndarray:
    out = aligned(packed_bytes(type))
    pack(data, type, out)
    return out


def q8_record(quants: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """int8[T,K] and f32[T,K/32] as a q8[T,K] lies in memory; what no one may read is 0xFF."""
    tokens, width = quants.shape
    sums = quants.reshape(tokens, -1, 32).sum(axis=-1, dtype=np.int32)
    halves = quants.reshape(tokens, -1, 16).sum(axis=-1, dtype=np.int32)
    buffer = aligned(tokens * q8_stride(width))
    fields = (quants.astype(np.int8), scales, (scales * sums).astype(np.float32), halves)
    record = np.concatenate([np.ascontiguousarray(f).view(np.uint8) for f in fields], axis=1)
    buffer.reshape(tokens, -1)[:, : record.shape[1]] = record
    return buffer


def activation(
    format_name: str, quants: np.ndarray, scales: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Quants × scales, as it lies in memory in this format, and as float32[T,K]."""
    values = (quants * np.repeat(scales, 32, axis=1)[:, : quants.shape[1]]).astype(np.float32)
    return (q8_record(quants, scales) if format_name == "q8" else rows_of(values)), values


def meaning(data: np.ndarray, type: TensorType) -> np.ndarray:
    """The weight in float64."""
    return dequantise(data, type).astype(np.float64)


def gguf_bytes() -> bytes:
    """A whole model in a small GGUF file: llama, one layer, SentencePiece."""
    import tempfile
    from pathlib import Path

    import gguf

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 3)
        writer.add_token_scores([0.0] * 259 + [-1.0, -2.0, -0.5])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("{{ messages[0].content }}")
        kind = gguf.GGMLQuantizationType.Q8_0
        rows = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32}
        rows |= {"ffn_gate": 32, "ffn_up": 32, "ffn_down": 32}
        matrices = {f"blk.0.{name}": count for name, count in rows.items()}
        for name, count in {"token_embd": len(tokens), **matrices}.items():
            values = gguf.quants.quantize(np.ones((count, 32), np.float32), kind)
            writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
        for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()
