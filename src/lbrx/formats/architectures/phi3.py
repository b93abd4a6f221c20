"""Phi 3 and 4: q, k and v in one matrix, gate and up in another, here as there."""

from lbrx.formats.architectures.table import (
    NORMS,
    SIZES,
    WINDOW,
    Architecture,
    Setting,
    ends,
    layer,
)

ARCHITECTURE = Architecture(
    model_type="phi3",
    gguf="phi3",
    class_name="Phi3ForCausalLM",
    rules=(
        *ends(),
        *NORMS,
        layer("self_attn.qkv_proj", "attn_qkv"),
        layer("self_attn.o_proj", "attn_output"),
        layer("mlp.gate_up_proj", "ffn_up"),
        layer("mlp.down_proj", "ffn_down"),
    ),
    settings=(
        *SIZES,
        *WINDOW,
        Setting("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ),
    constants={"hidden_act": "silu"},
    rotary_share="partial_rotary_factor",
)
