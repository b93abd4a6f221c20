"""Models of a few thousand weights, one of each architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_recurrent

import lbrx
from lbrx.files.formats import companions, translate

GEMMA = {"gemma", "gemma2", "gemma3_text"}
SANDWICHED = {"gemma2", "gemma3_text"}
TIED = {*GEMMA, "cohere", "cohere2", "gpt2", "lfm2"}
AFTER = {"olmo2", "olmo3", "exaone4"}  # norms after each part alone
HEAD_NORMS = {"qwen3", "qwen3_moe", "gemma3_text", "exaone4"}
WIDE_NORMS = {"olmo2", "olmo3"}
BIASES = {"qwen2": "qkv", "qwen2_moe": "qkv", "glm": "qkv", "glm4": "qkv", "seed_oss": "qkv"}
BIASES |= {"starcoder2": "qkvo", "gpt_oss": "qkvo"}
JOINED_GATES = {"phi3", "glm", "glm4"}
LATENT = {"deepseek_v2", "deepseek_v3"}
GROUPED = {*LATENT, "glm4_moe"}
FACTORS = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 3.0,
}
MAMBA = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4}
RECURRENT = {"lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1", "mamba2"}
SETTINGS: dict[str, dict[str, Any]] = {
    "granite": FACTORS,
    "olmo3": {"sliding_window": 4},
    "cohere": {"layer_norm_eps": 1e-5, "logit_scale": 0.5, "use_qk_norm": True},
    "cohere2": {"layer_norm_eps": 1e-5, "logit_scale": 0.5, "sliding_window": 4},
    "starcoder2": {"norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh"},
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "tie_word_embeddings": True,
    },
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_conv_kernel_dim": 4,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
    },
    "granitemoehybrid": {
        **FACTORS,
        **MAMBA,
        "num_local_experts": 0,
        "num_experts": 0,
        "layer_types": ["mamba", "attention"],
        "mamba_expand": 2,
    },
    "falcon_h1": {
        **MAMBA,
        "mamba_norm_before_gate": True,
        "attention_in_multiplier": 0.7,
        "attention_out_multiplier": 1.3,
        "ssm_in_multiplier": 0.9,
        "ssm_out_multiplier": 1.2,
        "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7],
        "mlp_multipliers": [0.9, 1.4],
        "key_multiplier": 0.6,
        "embedding_multiplier": 1.5,
        "lm_head_multiplier": 0.5,
    },
    "mamba2": {"num_heads": 8, "n_groups": 2, "state_size": 12, "conv_kernel": 4},
    "gpt_oss": {"sliding_window": 5, "swiglu_limit": 1.5},
    "gpt2": {"activation_function": "gelu_new", "num_key_value_heads": 4},
    "glm": {"partial_rotary_factor": 0.5},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": {"partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1},
}
LAYERS, EXPERTS = 2, 3


def config(kind: str, scale: int = 1, vocab: int = 11) -> dict[str, Any]:
    """Four heads, two of keys; gemma's embeddings are tied."""
    return {
        "model_type": kind,
        "num_hidden_layers": LAYERS,
        "hidden_size": 16 * scale,
        "intermediate_size": 24 * scale,
        "vocab_size": vocab,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4 * scale,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 64,
        "num_local_experts": EXPERTS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "partial_rotary_factor": 1.0,
        **({"tie_word_embeddings": True} if kind in TIED else {}),
        **({} if kind not in GROUPED else _grouped_settings(scale)),
        **SETTINGS.get(kind, {}),
        "linear_key_head_dim": 3 * scale,
        "linear_value_head_dim": 4 * scale,
    }


def _grouped_settings(scale: int) -> dict[str, Any]:
    """DeepSeek's: an ordinary MLP first, then six experts in three groups of which two are used."""
    return {
        "n_routed_experts": 6,
        "num_local_experts": 6,
        "num_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 8 * scale,
        "routed_scaling_factor": 1.5,
        "topk_method": "group_limited_greedy",
        "kv_lora_rank": 8 * scale,
        "q_lora_rank": 6 * scale,
        "qk_nope_head_dim": 4 * scale,
        "qk_rope_head_dim": 2 * scale,
        "v_head_dim": 3 * scale,
    }


def shapes(kind: str, scale: int = 1, vocab: int = 11) -> dict[str, tuple[int, ...]]:
    """The tensors, under Hugging Face's names."""
    if kind == "gpt2":
        return _gpt2(scale, vocab)
    if kind in RECURRENT:
        return tiny_recurrent.shapes(kind, scale, vocab)
    hidden = 16 * scale
    result: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if kind not in TIED:
        result["lm_head.weight"] = (vocab, hidden)
    if kind == "starcoder2":
        result["model.norm.bias"] = (hidden,)
    for n in range(LAYERS):
        attention = _latent_attention(scale) if kind in LATENT else _attention(kind, scale)
        grouped = kind in GROUPED and n > 0
        mlp = _grouped_mlp(kind, scale) if grouped else _mlp(kind, scale)
        parts = {**_norms(kind, hidden), **attention, **mlp}
        result |= {f"model.layers.{n}.{name}": shape for name, shape in parts.items()}
    return result


def _gpt2(scale: int, vocab: int) -> dict[str, tuple[int, ...]]:
    hidden = 16 * scale
    result: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (vocab, hidden),
        "transformer.wpe.weight": (64, hidden),
        **{f"transformer.ln_f.{kind}": (hidden,) for kind in ("weight", "bias")},
    }
    maps = {"attn.c_attn": 3 * hidden, "attn.c_proj": hidden, "mlp.c_fc": 4 * hidden}
    for n in range(LAYERS):
        at = f"transformer.h.{n}."
        for norm in ("ln_1", "ln_2"):
            result |= {f"{at}{norm}.{kind}": (hidden,) for kind in ("weight", "bias")}
        for name, rows in maps.items():
            result |= {f"{at}{name}.weight": (hidden, rows), f"{at}{name}.bias": (rows,)}
        result |= {
            f"{at}mlp.c_proj.weight": (4 * hidden, hidden),
            f"{at}mlp.c_proj.bias": (hidden,),
        }
    return result


def _norms(kind: str, hidden: int) -> dict[str, tuple[int, ...]]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if kind in SANDWICHED:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    elif kind in AFTER:
        names = ["post_attention_layernorm", "post_feedforward_layernorm"]
    elif kind == "glm4":
        names += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    elif kind.startswith("cohere"):
        names = names[:1]
    kinds = ("weight", "bias") if kind == "starcoder2" else ("weight",)
    return {f"{name}.{part}": (hidden,) for name in names for part in kinds}


def _attention(kind: str, scale: int) -> dict[str, tuple[int, ...]]:
    hidden, rows = 16 * scale, {"o": 16 * scale, "q": 16 * scale, "k": 8 * scale, "v": 8 * scale}
    result: dict[str, tuple[int, ...]] = {}
    if kind == "phi3":
        joined = sum(rows[head] for head in "qkv")
        weights = {"self_attn.qkv_proj.weight": (joined, hidden)}
        return {**weights, "self_attn.o_proj.weight": (hidden, hidden)}
    result |= {f"self_attn.{head}_proj.weight": (n, hidden) for head, n in rows.items()}
    result |= {f"self_attn.{head}_proj.bias": (rows[head],) for head in BIASES.get(kind, "")}
    if kind in HEAD_NORMS:
        result |= {f"self_attn.{head}_norm.weight": (4 * scale,) for head in "qk"}
    if kind == "gpt_oss":
        result["self_attn.sinks"] = (4,)
    if kind in WIDE_NORMS:
        result |= {f"self_attn.{head}_norm.weight": (rows[head],) for head in "qk"}
    if kind == "cohere":
        heads = {"q": 4, "k": 2}
        result |= {f"self_attn.{h}_norm.weight": (n, 4 * scale) for h, n in heads.items()}
    return result


def _latent_attention(scale: int) -> dict[str, tuple[int, ...]]:
    hidden, rank, query_rank = 16 * scale, 8 * scale, 6 * scale
    shapes: dict[str, tuple[int, ...]] = {
        "q_a_proj": (query_rank, hidden),
        "q_a_layernorm": (query_rank,),
        "q_b_proj": (4 * 6 * scale, query_rank),
        "kv_a_proj_with_mqa": (rank + 2 * scale, hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (4 * 7 * scale, rank),
        "o_proj": (hidden, 4 * 3 * scale),
    }
    return {f"self_attn.{name}.weight": shape for name, shape in shapes.items()}


def _grouped_mlp(kind: str, scale: int) -> dict[str, tuple[int, ...]]:
    hidden = 16 * scale
    result: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (6, hidden)}
    if kind != "deepseek_v2":
        result["mlp.gate.e_score_correction_bias"] = (6,)
    sizes = {f"mlp.experts.{e}": 8 * scale for e in range(6)} | {"mlp.shared_experts": 16 * scale}
    for name, size in sizes.items():
        result |= {f"{name}.{part}_proj.weight": (size, hidden) for part in ("gate", "up")}
        result[f"{name}.down_proj.weight"] = (hidden, size)
    return result


def _mlp(kind: str, scale: int) -> dict[str, tuple[int, ...]]:
    wide, narrow = (24 * scale, 16 * scale), (16 * scale, 24 * scale)
    if kind in JOINED_GATES:
        return {"mlp.gate_up_proj.weight": (48 * scale, 16 * scale), "mlp.down_proj.weight": narrow}
    if kind == "starcoder2":
        parts = {"c_fc": wide, "c_proj": narrow}
        weights = {f"mlp.{name}.weight": shape for name, shape in parts.items()}
        return weights | {f"mlp.{name}.bias": shape[:1] for name, shape in parts.items()}
    if kind == "gpt_oss":
        return _clamped_experts(wide, narrow)
    if kind.startswith("qwen") and kind.endswith("_moe"):
        return _qwen_experts(kind, wide, narrow)
    if kind != "mixtral":
        return {
            "mlp.gate_proj.weight": wide,
            "mlp.up_proj.weight": wide,
            "mlp.down_proj.weight": narrow,
        }
    result: dict[str, tuple[int, ...]] = {"block_sparse_moe.gate.weight": (EXPERTS, 16 * scale)}
    for e in range(EXPERTS):
        expert = f"block_sparse_moe.experts.{e}."
        result |= {
            f"{expert}w1.weight": wide,
            f"{expert}w3.weight": wide,
            f"{expert}w2.weight": narrow,
        }
    return result


def _clamped_experts(wide: tuple[int, int], narrow: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Of gpt-oss: inputs first, gate and up as neighbours."""
    return {
        "mlp.router.weight": (EXPERTS, wide[1]),
        "mlp.router.bias": (EXPERTS,),
        "mlp.experts.gate_up_proj": (EXPERTS, wide[1], 2 * wide[0]),
        "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * wide[0]),
        "mlp.experts.down_proj": (EXPERTS, narrow[1], narrow[0]),
        "mlp.experts.down_proj_bias": (EXPERTS, narrow[0]),
    }


def _qwen_experts(
    kind: str, wide: tuple[int, int], narrow: tuple[int, int]
) -> dict[str, tuple[int, ...]]:
    names = [f"mlp.experts.{e}" for e in range(EXPERTS)]
    result: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (EXPERTS, wide[1])}
    if kind == "qwen2_moe":
        names.append("mlp.shared_expert")
        result["mlp.shared_expert_gate.weight"] = (1, wide[1])
    for name in names:
        result |= {f"{name}.{part}_proj.weight": wide for part in ("gate", "up")}
        result[f"{name}.down_proj.weight"] = narrow
    return result


def to_gguf_file(path: Path, target: Path) -> lbrx.StoredModel:
    """A folder's model as a GGUF."""
    model = lbrx.open_model(path)
    recipes = translate.to_gguf(translate.to_huggingface(model.files), model.config)
    metadata = companions.gguf_metadata(model.files, model.config)
    lbrx.save(target, lbrx.StoredModel(model.files, recipes), metadata)
    return lbrx.open_model(target)
