"""gpt_neox: GPT-NeoX and Pythia; attention and feed-forward net side by side, partial RoPE."""

from dataclasses import replace

from hotloop.frontends.config import Config, Fields, read_config
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.weights import Tensors, split_rows, take_rows


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    mid = build.add(x, build.self_attention(build.norm(x, "attn_norm")), to="mid")
    before_ffn = x if config.parallel else mid
    return build.add(mid, build.plain_ffn(build.norm(before_ffn, "ffn_norm"), "erf"), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="gelu")
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    config = read_config(fields, pairing="half", eps=eps, rotated=0.25)
    parallel = fields.get("use_parallel_residual", "use_parallel_residual", bool, True)
    return replace(config, norm="layer_norm", parallel=parallel)


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """Queries, keys and values are one tensor; in Hugging Face's, head by head."""
    heads, dim = config.heads, config.head_dim
    by_part = [
        head * 3 * dim + part * dim + i
        for part in range(3)
        for head in range(heads)
        for i in range(dim)
    ]
    for i in range(config.layers):
        for kind in ("weight", "bias"):
            fused = f"blk.{i}.attn_qkv.{kind}"
            if not gguf and fused in tensors and tensors[fused].type.shape[0] == len(by_part):
                tensors[fused] = take_rows(tensors[fused], by_part)
            parts = [f"blk.{i}.attn_{part}.{kind}" for part in "qkv"]
            split_rows(tensors, fused, dict.fromkeys(parts, heads * dim))


FAMILY = Family(
    ("gpt_neox", "gptneox"),
    config,
    layer,
    {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "gpt_neox.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
        "gpt_neox.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
        "gpt_neox.layers.{i}.attention.query_key_value": "blk.{i}.attn_qkv",
        "gpt_neox.layers.{i}.attention.dense": "blk.{i}.attn_output",
        "gpt_neox.layers.{i}.mlp.dense_h_to_4h": "blk.{i}.ffn_up",
        "gpt_neox.layers.{i}.mlp.dense_4h_to_h": "blk.{i}.ffn_down",
    },
    adapt,
    unread=("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)
