"""ERNIE 4.5: Llama's names; GGUF does not reorder rows."""

from lbrx.files.formats.architecture_tables.table import (
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
        model_type="ernie4_5",
        gguf="ernie4_5",
        class_name="Ernie4_5ForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=False), *MLP),
        settings=(*SIZES, *HEAD_SIZES),
        constants={"hidden_act": "silu"},
    )
)
