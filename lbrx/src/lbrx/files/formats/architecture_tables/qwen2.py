"""Qwen 2 and 2.5: biases on queries, keys and values; GGUF does not reorder rows."""

from lbrx.files.formats.architecture_tables.table import (
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
        model_type="qwen2",
        gguf="qwen2",
        class_name="Qwen2ForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=False), *MLP),
        settings=SIZES,
        constants={"hidden_act": "silu"},
    )
)
