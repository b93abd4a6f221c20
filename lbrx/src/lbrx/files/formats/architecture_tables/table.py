"""The records of an architecture's table, `register`, and the rows that most tables share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from lbrx.entry_points import Registry
from lbrx.errors import FormatError


@dataclass(frozen=True)
class NameRule:
    """The names of one module in both families. `{layer}` and `{expert}` stand for numbers;
    `.weight` or `.bias` follows. Hugging Face stores each expert as a tensor, GGUF stacks them."""

    huggingface: str
    gguf: str
    heads: str = ""
    """The setting with the number of heads, if GGUF stores their rows in RoPE's pairs."""
    shift: float = 0
    """The constant that GGUF's values have added to Hugging Face's."""
    row: bool = False
    """Whether llama.cpp stores the one row of this matrix as a vector."""


@dataclass(frozen=True)
class Setting:
    """A hyperparameter: its key in config.json, and in GGUF after the architecture's name."""

    huggingface: str
    gguf: str
    absent: int | None = None
    """GGUF's value where config.json has none or null."""


@dataclass(frozen=True)
class Architecture:
    """The names and layouts of one model type in Hugging Face's files and in GGUF."""

    model_type: str
    gguf: str
    """GGUF's `general.architecture`."""
    class_name: str
    """The class in Hugging Face's transformers."""
    rules: tuple[NameRule, ...]
    settings: tuple[Setting, ...]
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Settings that config.json has and GGUF implies."""
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Settings that config.json may omit."""
    aliases: tuple[str, ...] = ()
    """Other model types that this table is for."""
    gguf_marker: str = ""
    """The metadata key, after the architecture's name, that tells this architecture from others
    with the same name in GGUF."""
    rotary_share: str = ""
    """The setting with the share of a head that RoPE rotates; empty for all of it."""
    scaled_by_width: int = 0
    """The number of layers of the one model size whose queries are scaled by width / heads. GGUF
    has no key for it: llama.cpp recognises the size by this number. 0 if there is none."""
    far_every: int = 0
    """The period of layers: the last one of each attends to all tokens, the others to a sliding
    window. 0 if all layers are alike."""


ARCHITECTURES: Registry[Architecture] = Registry("lbrx.architecture_tables")
"""Every architecture by its model type."""


def register(architecture: Architecture) -> Architecture:
    """Add an architecture's table."""
    name = architecture.model_type
    if name in ARCHITECTURES:
        raise FormatError(f"the architecture {name!r} exists already: give another model type")
    ARCHITECTURES[name] = architecture
    return architecture


def layer(huggingface: str, gguf: str, heads: str = "", shift: float = 0) -> NameRule:
    return NameRule(f"model.layers.{{layer}}.{huggingface}", f"blk.{{layer}}.{gguf}", heads, shift)


def ends(shift: float = 0) -> tuple[NameRule, ...]:
    """Embedding, last norm, output."""
    return (
        NameRule("model.embed_tokens", "token_embd"),
        NameRule("model.norm", "output_norm", shift=shift),
        NameRule("lm_head", "output"),
    )


def attention(in_pairs: bool) -> tuple[NameRule, ...]:
    """The four projections; `in_pairs` if GGUF has the rows of queries and keys in pairs."""
    query, key = ("num_attention_heads", "num_key_value_heads") if in_pairs else ("", "")
    return (
        layer("self_attn.q_proj", "attn_q", query),
        layer("self_attn.k_proj", "attn_k", key),
        layer("self_attn.v_proj", "attn_v"),
        layer("self_attn.o_proj", "attn_output"),
    )


def experts(module: str) -> tuple[NameRule, ...]:
    """The matrices of experts."""
    return tuple(
        layer(f"{module}.experts.{{expert}}.{part}_proj", f"ffn_{part}_exps")
        for part in ("gate", "up", "down")
    )


NORMS = (
    layer("input_layernorm", "attn_norm"),
    layer("post_attention_layernorm", "ffn_norm"),
)
NORMS_AFTER = (
    layer("post_attention_layernorm", "post_attention_norm"),
    layer("post_feedforward_layernorm", "post_ffw_norm"),
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
LAYER_NORM_SIZES = tuple(each for each in SIZES if each.huggingface != "rms_norm_eps")
HEAD_SIZES = (
    Setting("head_dim", "attention.key_length"),
    Setting("head_dim", "attention.value_length"),
)
VOCABULARY = (Setting("vocab_size", "vocab_size"),)
WINDOW = (Setting("sliding_window", "attention.sliding_window"),)
