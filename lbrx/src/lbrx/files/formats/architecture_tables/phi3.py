"""Phi 3 and 4: queries, keys and values in one matrix, gate and up in another, in both families."""

from lbrx.files.formats.architecture_tables.table import (
    NORMS,
    SIZES,
    Architecture,
    Setting,
    ends,
    layer,
    register,
)

ARCHITECTURE = register(
    Architecture(
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
            # Zero tells Phi 4, which has no window, from Phi 3.
            Setting("sliding_window", "attention.sliding_window", absent=0),
            Setting("original_max_position_embeddings", "rope.scaling.original_context_length"),
        ),
        constants={"hidden_act": "silu"},
        rotary_share="partial_rotary_factor",
    )
)
