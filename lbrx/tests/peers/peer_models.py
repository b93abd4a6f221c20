"""Random tiny models of transformers, with every setting that changes what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import stored_cases
import torch
import transformers

VOCABULARY = 640
LENGTH = 21  # tokens: beyond every window and original context below
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 3.0}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0, 12.0],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
GROUPED = {
    "n_routed_experts": 6,
    "n_group": 3,
    "topk_group": 2,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 24,
    "num_local_experts": 0, "shared_intermediate_size": 48,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
    "linear_value_head_dim": 16, "shared_expert_intermediate_size": 40,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
FAR, NEAR = "full_attention", "sliding_attention"
# Differences from BASE. Contexts are short, so that their lengths matter.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biases": {"attention_bias": True, "mlp_bias": True},
    "llama, every head its keys": {"num_key_value_heads": 4},
    "llama, one head of keys": {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 60},
    "llama, heads of 20": {"head_dim": 20, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48},
    "llama, heads of 6": {"head_dim": 6},
    "llama, heads of 96": {"head_dim": 96},
    "llama, llama3": {"rope_scaling": LLAMA3, "rope_theta": 5000.0},
    "llama, linear": {"rope_scaling": LINEAR},
    "llama, yarn": {"rope_scaling": YARN},
    "llama, longrope": {"rope_scaling": {**LONG, "original_max_position_embeddings": 64, "factor": 4.0}},
    "llama, gelu": {"hidden_act": "gelu"},
    "mistral": {"sliding_window": 7},
    "mistral, no window": {"sliding_window": None, "head_dim": 24},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7},
    "qwen2": {},
    "qwen2, tied": {"tie_word_embeddings": True, "num_attention_heads": 8},
    "qwen2, yarn": {"rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 0.5, "attention_factor": 1.3}},
    "qwen2, yarn untruncated": {"rope_scaling": {**YARN, "original_max_position_embeddings": 64, "truncate": False}, "rope_theta": 100.0},
    "qwen2, yarn scales": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}},
    "qwen2, window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2, listed window": {"use_sliding_window": True, "sliding_window": 5, "layer_types": [NEAR, FAR]},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 40},
    "qwen2_moe, normalised": {**EXPERTS, "shared_expert_intermediate_size": 40, "norm_topk_prob": True},
    "qwen3": {"head_dim": 24},
    "qwen3, biases": {"attention_bias": True},
    "qwen3, window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3_moe": {**EXPERTS, "head_dim": 24, "norm_topk_prob": True},
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 24},
    "gemma2, untied": {"tie_word_embeddings": False, "attention_bias": True, "sliding_window": 6},
    "gemma2, listed": {"layer_types": [FAR, NEAR], "sliding_window": 4},
    "gemma2, no caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma2, caps": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {"sliding_window": 6, "num_hidden_layers": 7},
    "gemma3_text, pattern": {"sliding_window": 6, "sliding_window_pattern": 2, "rope_local_base_freq": 100.0},
    "gemma3_text, linear": {"sliding_window": 6, "sliding_window_pattern": 2, "rope_scaling": LINEAR},
    "gemma3_text, caps": {"sliding_window": 6, "final_logit_softcapping": 4.0, "query_pre_attn_scalar": 10},
    "gemma": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 6, "layer_types": [FAR, NEAR]},
    "olmo3, yarn": {"sliding_window": 6, "layer_types": [NEAR, FAR], "rope_scaling": YARN},
    "granite": {"attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 3.0},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16, "partial_rotary_factor": 0.75},
    "glm4_moe": {**GROUPED, "head_dim": 16},
    "glm4_moe, norms": {**GROUPED, "head_dim": 16, "use_qk_norm": True, "attention_bias": True, "norm_topk_prob": False},
    "deepseek_v2": {**GROUPED, **LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v2, greedy": {**GROUPED, **LATENT, "topk_method": "greedy", "q_lora_rank": None},
    "deepseek_v3": {**GROUPED, **LATENT},
    "deepseek_v3, yarn": {**GROUPED, **LATENT, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "cohere": {"logit_scale": 0.4},
    "cohere, norms": {"use_qk_norm": True, "attention_bias": True},
    "cohere2": {"sliding_window": 6, "layer_types": [FAR, NEAR], "logit_scale": 0.4},
    "starcoder2": {"sliding_window": 7},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {**EXPERTS, **DELTA, "head_dim": 16, "norm_topk_prob": True},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 24},
    "mamba2, limits": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 24, "time_step_limit": (0.1, 0.9)},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"], "attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 3.0},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128, "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7], "mlp_multipliers": [0.9, 1.4], "key_multiplier": 0.6},
    "falcon_h1, norm": {**MAMBA, "mamba_d_ssm": 128, "mamba_rms_norm": True, "ssm_in_multiplier": 0.9, "lm_head_multiplier": 0.5},
    "falcon_h1, gate first": {**MAMBA, "mamba_d_ssm": 128, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    "gpt_oss": {"head_dim": 16, "sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.5},
    "ernie4_5": {"head_dim": 16},
    "ernie4_5, biases": {"use_bias": True, "tie_word_embeddings": False},
    "seed_oss": {"head_dim": 24},
    "exaone4": {},
    "exaone4, window": {"sliding_window": 6, "layer_types": [NEAR, FAR]},
    "phi3": {"sliding_window": 9},
    "phi3, part turns": {"partial_rotary_factor": 0.75},
    "phi3, short texts": {"rope_scaling": LONG, "original_max_position_embeddings": 64, "max_position_embeddings": 256},
    "phi3, long texts": {"rope_scaling": LONG, "original_max_position_embeddings": 16, "max_position_embeddings": 256},
    "smollm3": {"num_hidden_layers": 4},
    "smollm3, listed": {"no_rope_layers": [1, 0]},
    "smollm3, biases": {"attention_bias": True, "mlp_bias": True},
    "smollm3, window": {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5},
    "smollm3, yarn": {"rope_scaling": YARN, "tie_word_embeddings": False},
}  # fmt: skip
CASES |= stored_cases.CASES
BASE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": VOCABULARY,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


# GGUF has no key for the second, and takes it to equal the first.
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16}


def kind_of(case: str) -> str:
    return case.split(",")[0]


def make(case: str, seed: int, **changes: Any) -> Any:
    """A model with random weights."""
    kind, settings = kind_of(case), {**BASE, **CASES[case], **changes}
    is_gemma = kind.startswith("gemma")
    if is_gemma:
        settings = {**GEMMA, **settings}
    config = transformers.AutoConfig.for_model(kind, **settings)
    return _random(transformers.AutoModelForCausalLM, config, seed, norms=0 if is_gemma else 1)


def make_multimodal_gemma(seed: int) -> Any:
    """Multimodal Gemma 3, with a vision tower."""
    text = {**BASE, **GEMMA, "sliding_window": 6, "num_hidden_layers": 7, "rope_scaling": LINEAR}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    tower = {**sizes, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    special = {"image_token_index": 0, "boi_token_index": 1, "eoi_token_index": 1}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=tower, mm_tokens_per_image=4, **special
    )
    return _random(transformers.AutoModelForImageTextToText, config, seed, norms=0)


def _random(auto: Any, config: Any, seed: int, norms: int) -> Any:
    torch.manual_seed(seed)
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.2)
            if "norm" in name:
                parameter += norms
    return model


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    return np.random.default_rng(seed).integers(2, VOCABULARY, length).tolist()


def logits(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double().numpy()


def assign(model: Any, values: dict[str, np.ndarray]) -> None:
    """Give a model other weights."""
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(torch.tensor(value))


def write(model: Any, folder: Path, **options: Any) -> Path:
    """As a folder of Hugging Face's, with a tokenizer."""
    import tiny_tokenizers

    model.save_pretrained(folder, **options)
    tiny_tokenizers.write(folder, tiny_tokenizers.byte_level("smollm"))
    return folder
