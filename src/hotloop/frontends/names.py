"""Names of tensors: what families call alike, from Hugging Face's to GGUF's.

Modules are named, and their `weight` and `bias` go along. `{i}` is the layer's number.
"""

ATTENTION = {
    "model.layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
    "model.layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    "model.layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
    "model.layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
}
Q_K_NORM = {
    "model.layers.{i}.self_attn.q_norm": "blk.{i}.attn_q_norm",
    "model.layers.{i}.self_attn.k_norm": "blk.{i}.attn_k_norm",
}
GATED_FFN = {
    "model.layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
    "model.layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
}
ENDS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
PRE_NORMS = {
    "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
}
POST_NORMS = {
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
    "model.layers.{i}.post_feedforward_layernorm": "blk.{i}.post_ffw_norm",
}
EXPERTS = {
    "model.layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.mlp.experts.{e}.gate_proj": "blk.{i}.ffn_gate_exps.{e}",
    "model.layers.{i}.mlp.experts.{e}.up_proj": "blk.{i}.ffn_up_exps.{e}",
    "model.layers.{i}.mlp.experts.{e}.down_proj": "blk.{i}.ffn_down_exps.{e}",
}
"""`{e}` is the expert's number."""
FOUR_NORMS = POST_NORMS | {
    "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
    "model.layers.{i}.pre_feedforward_layernorm": "blk.{i}.ffn_norm",
}

LLAMA = ENDS | PRE_NORMS | ATTENTION | GATED_FFN
"""Those of most families: Llama's."""
