"""Qwen 3: norms on the heads of queries and keys, and a separate setting for the head size."""

from lbrx.files.formats.architecture_tables.table import (
    HEAD_NORMS,
    HEAD_SIZES,
    MLP,
    NORMS,
    SIZES,
    Architecture,
    attention,
    ends,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="qwen3",
        gguf="qwen3",
        class_name="Qwen3ForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=False), *HEAD_NORMS, *MLP),
        settings=(*SIZES, *HEAD_SIZES),
        constants={"hidden_act": "silu", "attention_bias": False},
    )
)
