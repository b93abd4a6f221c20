"""What an architecture's table is made of, and the rows that most of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A module under both names. `{layer}` and `{expert}` stand for numbers; weight, bias and the
    like follow a dot. Experts are tensors of their own for Hugging Face, and stacked elsewhere."""

    huggingface: str
    gguf: str
    heads: str = ""
    """The setting that counts the heads whose rows GGUF has in pairs; empty where it has not."""
    shift: float = 0
    """What GGUF's values have more than Hugging Face's."""


@dataclass(frozen=True)
class Setting:
    """A hyperparameter: its key in config.json, and in GGUF after the architecture's name."""

    huggingface: str
    gguf: str
    absent: int | None = None
    """What GGUF says where config.json does not, or says null."""


@dataclass(frozen=True)
class Architecture:
    """How one model type is called and laid out in both families."""

    model_type: str
    gguf: str
    class_name: str
    rules: tuple[Rule, ...]
    settings: tuple[Setting, ...]
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What config.json says and GGUF takes for granted."""
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What config.json may leave out."""
    rotary_share: str = ""
    """The setting that says which part of a head RoPE turns; empty for all of it."""
    scaled_by_width: int = 0
    """How many layers the size has whose queries are scaled by width / heads. GGUF does not say,
    and llama.cpp knows it by this number; 0 where no size is."""
    far_every: int = 0
    """The last of so many layers sees all, the others have a window; 0 where all are alike."""


def layer(huggingface: str, gguf: str, heads: str = "", shift: float = 0) -> Rule:
    return Rule(f"model.layers.{{layer}}.{huggingface}", f"blk.{{layer}}.{gguf}", heads, shift)


def ends(shift: float = 0) -> tuple[Rule, ...]:
    """Embedding, last norm, output."""
    return (
        Rule("model.embed_tokens", "token_embd"),
        Rule("model.norm", "output_norm", shift=shift),
        Rule("lm_head", "output"),
    )


def attention(in_pairs: bool) -> tuple[Rule, ...]:
    """Four projections."""
    query, key = ("num_attention_heads", "num_key_value_heads") if in_pairs else ("", "")
    return (
        layer("self_attn.q_proj", "attn_q", query),
        layer("self_attn.k_proj", "attn_k", key),
        layer("self_attn.v_proj", "attn_v"),
        layer("self_attn.o_proj", "attn_output"),
    )


NORMS = (
    layer("input_layernorm", "attn_norm"),
    layer("post_attention_layernorm", "ffn_norm"),
)
HEAD_NORMS = (layer("self_attn.q_norm", "attn_q_norm"), layer("self_attn.k_norm", "attn_k_norm"))
MLP = (
    layer("mlp.gate_proj", "ffn_gate"),
    layer("mlp.up_proj", "ffn_up"),
    layer("mlp.down_proj", "ffn_down"),
)
SIZES = (
    Setting("num_hidden_layers", "block_count"),
    Setting("max_position_embeddings", "context_length"),
    Setting("hidden_size", "embedding_length"),
    Setting("intermediate_size", "feed_forward_length"),
    Setting("num_attention_heads", "attention.head_count"),
    Setting("num_key_value_heads", "attention.head_count_kv"),
    Setting("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    Setting("rope_theta", "rope.freq_base"),
)
HEAD_SIZES = (
    Setting("head_dim", "attention.key_length"),
    Setting("head_dim", "attention.value_length"),
)
VOCABULARY = (Setting("vocab_size", "vocab_size"),)
WINDOW = (Setting("sliding_window", "attention.sliding_window"),)
