"""Qwen 2 and 3 MoE: Qwen's attention, and experts that GGUF stacks."""

from dataclasses import replace

from lbrx.files.formats.architecture_tables.table import (
    HEAD_NORMS,
    HEAD_SIZES,
    NORMS,
    SIZES,
    Architecture,
    Setting,
    attention,
    ends,
    experts,
    layer,
    register,
)

SETTINGS = (
    *SIZES,
    Setting("num_experts", "expert_count"),
    Setting("num_experts_per_tok", "expert_used_count"),
    Setting("moe_intermediate_size", "expert_feed_forward_length"),
    Setting("norm_topk_prob", "expert_weights_norm"),
)
EXPERTS = (layer("mlp.gate", "ffn_gate_inp"), *experts("mlp"))

QWEN2 = register(
    Architecture(
        model_type="qwen2_moe",
        gguf="qwen2moe",
        class_name="Qwen2MoeForCausalLM",
        rules=(
            *ends(),
            *NORMS,
            *attention(in_pairs=False),
            *EXPERTS,
            replace(layer("mlp.shared_expert_gate", "ffn_gate_inp_shexp"), row=True),
            layer("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            layer("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            layer("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ),
        settings=(
            *SETTINGS,
            Setting("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ),
        constants={"hidden_act": "silu", "norm_topk_prob": False},
    )
)
QWEN3 = register(
    Architecture(
        model_type="qwen3_moe",
        gguf="qwen3moe",
        class_name="Qwen3MoeForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=False), *HEAD_NORMS, *EXPERTS),
        settings=(*SETTINGS, *HEAD_SIZES),
        constants={"hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True},
    )
)
