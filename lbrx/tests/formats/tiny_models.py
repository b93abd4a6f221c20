"""Models of a few thousand weights, one of each architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lbrx
from lbrx.formats import companions, translate

GEMMA = {"gemma2", "gemma3_text"}
HEAD_NORMS = {"qwen3", "qwen3_moe", "gemma3_text"}
BIASES = {"qwen2": "qkv", "qwen2_moe": "qkv"}
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
        **({"tie_word_embeddings": True} if kind in GEMMA else {}),
    }


def shapes(kind: str, scale: int = 1, vocab: int = 11) -> dict[str, tuple[int, ...]]:
    """The tensors, under Hugging Face's names."""
    hidden = 16 * scale
    result: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if kind not in GEMMA:
        result["lm_head.weight"] = (vocab, hidden)
    for n in range(LAYERS):
        parts = {**_attention(kind, scale), **_mlp(kind, scale)}
        result |= {f"model.layers.{n}.{name}": shape for name, shape in parts.items()}
    return result


def _attention(kind: str, scale: int) -> dict[str, tuple[int, ...]]:
    hidden, rows = 16 * scale, {"q": 16 * scale, "k": 8 * scale, "v": 8 * scale}
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if kind in GEMMA else []
    result: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in norms}
    result["self_attn.o_proj.weight"] = (hidden, hidden)
    if kind == "phi3":
        return {**result, "self_attn.qkv_proj.weight": (sum(rows.values()), hidden)}
    result |= {f"self_attn.{head}_proj.weight": (n, hidden) for head, n in rows.items()}
    result |= {f"self_attn.{head}_proj.bias": (rows[head],) for head in BIASES.get(kind, "")}
    if kind in HEAD_NORMS:
        result |= {f"self_attn.{head}_norm.weight": (4 * scale,) for head in "qk"}
    return result


def _mlp(kind: str, scale: int) -> dict[str, tuple[int, ...]]:
    wide, narrow = (24 * scale, 16 * scale), (16 * scale, 24 * scale)
    if kind == "phi3":
        return {"mlp.gate_up_proj.weight": (48 * scale, 16 * scale), "mlp.down_proj.weight": narrow}
    if kind.endswith("_moe"):
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
