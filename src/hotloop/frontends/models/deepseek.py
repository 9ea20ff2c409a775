"""deepseek: DeepSeek-V2 and V3; latent attention (MLA), and a mixture of experts in groups.

Keys and values are made of a short vector that all heads share. Here they are written out for every
head before they are cached: right, and larger than the vector would be.
"""

from dataclasses import replace

from hotloop.frontends import names
from hotloop.frontends.config import Config, Fields, Latent, read_config, read_experts
from hotloop.frontends.decoder import Family, LayerBuilder
from hotloop.frontends.rope import read_rope
from hotloop.frontends.rope_scaling import yarn_attention_factor
from hotloop.frontends.weights import Tensors, joined_heads, split_rows, take_rows


def layer(build: LayerBuilder, config: Config, x: str) -> str:
    latent = config.latent
    assert latent is not None
    h = build.norm(x, "attn_norm")
    heads, dim = config.heads, config.head_dim
    if latent.q_rank:
        low = build.norm(build.linear(h, "attn_q_a", latent.q_rank), "attn_q_a_norm")
        q = build.linear(low, "attn_q_b", heads * dim, to="q")
    else:
        q = build.linear(h, "attn_q", heads * dim, to="q")
    turned = build.rope(build.linear(h, "attn_k_rope", latent.rope, to="k.rope"), latent.rope)
    low = build.norm(build.linear(h, "attn_kv_a", latent.kv_rank), "attn_kv_a_norm")
    k = build.linear(low, "attn_k", heads * dim, to="k")
    k = build.op("spread", k, turned, to="k.whole", head_dim=dim)
    v = build.linear(low, "attn_v", heads * dim, to="v")
    attended = build.attention(build.rope(q), k, v)
    if latent.value != dim:
        attended = build.op("narrow", attended, to="attn.values", head_dim=dim, keep=latent.value)
    x = build.add(x, build.attn_output(attended), to="mid")
    return build.add(x, build.ffn(build.norm(x, "ffn_norm")), to="out")


def config(fields: Fields) -> Config:
    fields.expect(hidden_act="silu", moe_layer_freq=1)
    config = read_config(fields, pairing="interleaved")
    rope = fields.need("rope.dimension_count", "qk_rope_head_dim", int)
    plain = fields.get("", "qk_nope_head_dim", int, 0)
    whole = fields.get("attention.key_length", "", int, plain + rope)
    value = fields.need("attention.value_length", "v_head_dim", int)
    latent = Latent(
        q_rank=fields.get("attention.q_lora_rank", "q_lora_rank", int, 0),
        kv_rank=fields.need("attention.kv_lora_rank", "kv_lora_rank", int),
        rope=rope,
        value=fields.get("attention.value_length_mla", "", int, value),
    )
    dim = fields.get("attention.key_length_mla", "", int, whole)
    ropes = (read_rope(fields, rope, config.context),)
    experts = read_experts(fields, count="n_routed_experts", normalise=False)
    shared = fields.get("expert_shared_count", "n_shared_experts", int, 0)
    best_two = fields.get("expert_gating_func", "", int, 1) == 2 or (
        fields.file.architecture == "deepseek_v3"
    )
    return replace(
        config,
        kv_heads=config.heads,
        head_dim=dim,
        ropes=ropes,
        attention_scale=dim**-0.5 * _sharper(fields) ** 2,
        latent=latent,
        experts=replace(
            experts,
            shared=shared * experts.ffn,
            scoring="sigmoid" if best_two else "softmax",
            groups=fields.get("expert_group_count", "n_group", int, 1),
            top_groups=fields.get("expert_group_used_count", "topk_group", int, 1),
            group_best=2 if best_two else 1,
        ),
    )


def _sharper(fields: Fields) -> float:
    """Where yarn stretches the context, scores are scaled besides what cos and sin are."""
    none: dict[str, float] = {}
    section = fields.get("", "rope_parameters", dict, None)
    section = section or fields.get("", "rope_scaling", dict, none)
    factor = fields.get("rope.scaling.factor", "", float, section.get("factor"))
    multiplier = fields.get("rope.scaling.yarn_log_multiplier", "", float, None)
    by = section.get("mscale_all_dim") if multiplier is None else multiplier * 10
    return yarn_attention_factor(float(factor), float(by)) if factor and by else 1.0


def adapt(tensors: Tensors, config: Config, gguf: bool) -> None:
    """The turned part of each head first, which is where `rope` turns; and all heads as long."""
    latent = config.latent
    assert latent is not None
    dim, plain = config.head_dim, config.head_dim - latent.rope
    first = [*range(plain, dim), *range(plain)]
    query = [head * dim + i for head in range(config.heads) for i in first]
    both = plain + latent.value
    key = [*([-1] * latent.rope), *range(plain)]
    value = [*range(plain, both), *([-1] * (dim - latent.value))]
    for i in range(config.layers):
        layer = f"blk.{i}"
        for name in (f"{layer}.attn_q.weight", f"{layer}.attn_q_b.weight"):
            if name in tensors and tensors[name].type.shape[0] == len(query):
                tensors[name] = take_rows(tensors[name], query)
        parts = {
            f"{layer}.attn_kv_a.weight": latent.kv_rank,
            f"{layer}.attn_k_rope.weight": latent.rope,
        }
        split_rows(tensors, f"{layer}.attn_kv_a_mqa.weight", parts)
        if f"{layer}.attn_k_b.weight" in tensors:
            joined_heads(tensors, layer)
        up = tensors.get(f"{layer}.attn_kv_b.weight")
        if up is not None and up.type.shape[0] == config.heads * both:
            del tensors[f"{layer}.attn_kv_b.weight"]
            for name, rows in (("attn_k", key), ("attn_v", value)):
                numbers = [
                    -1 if row < 0 else head * both + row
                    for head in range(config.heads)
                    for row in rows
                ]
                tensors[f"{layer}.{name}.weight"] = take_rows(up, numbers)
        bias = tensors.pop(f"{layer}.ffn_gate_inp.e_score_correction_bias", None)
        if bias is not None:
            tensors[f"{layer}.exp_probs_b.bias"] = bias


FAMILY = Family(
    ("deepseek_v2", "deepseek_v3", "deepseek2"),
    config,
    layer,
    names.LLAMA
    | names.EXPERTS
    | {
        "model.layers.{i}.self_attn.q_a_proj": "blk.{i}.attn_q_a",
        "model.layers.{i}.self_attn.q_a_layernorm": "blk.{i}.attn_q_a_norm",
        "model.layers.{i}.self_attn.q_b_proj": "blk.{i}.attn_q_b",
        "model.layers.{i}.self_attn.kv_a_proj_with_mqa": "blk.{i}.attn_kv_a_mqa",
        "model.layers.{i}.self_attn.kv_a_layernorm": "blk.{i}.attn_kv_a_norm",
        "model.layers.{i}.self_attn.kv_b_proj": "blk.{i}.attn_kv_b",
        "model.layers.{i}.mlp.shared_experts.gate_proj": "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.mlp.shared_experts.up_proj": "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.mlp.shared_experts.down_proj": "blk.{i}.ffn_down_shexp",
    },
    adapt,
)
