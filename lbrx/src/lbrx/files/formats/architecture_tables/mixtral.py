"""Mixtral: Llama's attention, and experts that GGUF stacks."""

from lbrx.files.formats.architecture_tables.table import (
    HEAD_SIZES,
    NORMS,
    SIZES,
    VOCABULARY,
    Architecture,
    Setting,
    attention,
    ends,
    layer,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="mixtral",
        gguf="llama",
        gguf_marker="expert_count",
        class_name="MixtralForCausalLM",
        rules=(
            *ends(),
            *NORMS,
            *attention(in_pairs=True),
            layer("block_sparse_moe.gate", "ffn_gate_inp"),
            layer("block_sparse_moe.experts.{expert}.w1", "ffn_gate_exps"),
            layer("block_sparse_moe.experts.{expert}.w2", "ffn_down_exps"),
            layer("block_sparse_moe.experts.{expert}.w3", "ffn_up_exps"),
        ),
        settings=(
            *SIZES,
            *HEAD_SIZES,
            *VOCABULARY,
            Setting("num_local_experts", "expert_count"),
            Setting("num_experts_per_tok", "expert_used_count"),
        ),
        constants={"hidden_act": "silu"},
    )
)
