"""GLM 4 of 2025: norms around each part, gate and up in one matrix."""

from lbrx.files.formats.architecture_tables.table import (
    HEAD_SIZES,
    SIZES,
    Architecture,
    attention,
    ends,
    layer,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="glm4",
        gguf="glm4",
        class_name="Glm4ForCausalLM",
        rules=(
            *ends(),
            layer("input_layernorm", "attn_norm"),
            layer("post_self_attn_layernorm", "post_attention_norm"),
            layer("post_attention_layernorm", "ffn_norm"),
            layer("post_mlp_layernorm", "post_ffw_norm"),
            *attention(in_pairs=False),
            layer("mlp.gate_up_proj", "ffn_up"),
            layer("mlp.down_proj", "ffn_down"),
        ),
        settings=(*SIZES, *HEAD_SIZES),
        constants={"hidden_act": "silu"},
        defaults={"partial_rotary_factor": 0.5},
        rotary_share="partial_rotary_factor",
    )
)
