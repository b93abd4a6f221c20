"""Tiny models whose results transformers computed once: lbrx/scripts/transformers_reference.py."""

from __future__ import annotations

from typing import Any

FAR, NEAR = "full_attention", "sliding_attention"
DELTA = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", FAR],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROWING = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
NEMOTRON = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "head_dim": 16,
    "n_routed_experts": 4,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "num_experts_per_tok": 2,
}
LLAMA4 = {
    "head_dim": 16,
    "num_local_experts": 4,
    "intermediate_size_mlp": 80,
    "attention_chunk_size": 64,
    "floor_scale": 8,
}
# Differences from BASE, by the model type and what is different.
CASES: dict[str, dict[str, Any]] = {
    "bitnet": {},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "gpt_neox": {"rotary_pct": 0.25},
    "gpt_neox, in turn": {"use_parallel_residual": False, "rotary_pct": 1.0},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_dense, alpha": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "dynamic",
            "alpha": 50.0,
            "factor": 1.0,
            "rope_theta": 1e4,
        },
    },
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "lfm2_moe": {**EXPERTS, "layer_types": ["conv", FAR], "num_dense_layers": 1},
    "llama4_text": {**LLAMA4, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0]},
    "llama4_text, no norms": {**LLAMA4, "use_qk_norm": False, "no_rope_layers": [1, 0]},
    "ministral": {"head_dim": 16, "sliding_window": 6, "layer_types": [NEAR, FAR]},
    "ministral3": {"head_dim": 16, "rope_parameters": GROWING},
    "nemotron_h": {**NEMOTRON, "hybrid_override_pattern": "M*-E", "num_hidden_layers": 4},
    "nemotron_h, narrow experts": {
        **NEMOTRON,
        "hybrid_override_pattern": "ME*",
        "num_hidden_layers": 3,
        "moe_latent_size": 32,
    },
    "phimoe": {"num_local_experts": 4, "lm_head_bias": True, "attention_bias": True},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 40},
}
BASE = {
    "vocab_size": 620,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
TEXT = [(7 * i * i + 3 * i + 11) % 600 + 2 for i in range(33)]


def kind_of(case: str) -> str:
    """The model type that lbrx runs."""
    return case.partition(",")[0]


def settings_of(case: str) -> dict[str, Any]:
    return {**BASE, **CASES[case]}
