"""qwen3_moe: Qwen 3, mixture of experts; some layers may be dense."""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, late_windows, read_config, read_experts
from hotloop.frontends.decoder import Family, LayerBuilder


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    q, k, v = build.qkv(build.norm(x, "attn_norm"))
    q, k = build.head_norm(q, "attn_q_norm"), build.head_norm(k, "attn_k_norm")
    attended = build.attention(build.rope(q), build.rope(k), v)
    x = build.add(x, build.attn_output(attended), to="mid")
    return build.add(x, build.ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu")
    config = read_config(fields, pairing="half")
    # transformers 5 renames the count.
    count = "num_experts" if "num_experts" in fields.file.metadata else "num_local_experts"
    return replace(
        config,
        windows=late_windows(fields, config.layers),
        experts=read_experts(fields, count=count, normalise=fields.gguf),
    )


FAMILY = Family(
    ("qwen3_moe", "qwen3moe"), config, layer, names.LLAMA | names.Q_K_NORM | names.EXPERTS
)
