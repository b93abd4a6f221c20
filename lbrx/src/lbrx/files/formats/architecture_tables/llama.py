"""Llama 1 to 3, and models of the same architecture: SmolLM, TinyLlama, Yi."""

from lbrx.files.formats.architecture_tables.table import (
    HEAD_SIZES,
    MLP,
    NORMS,
    SIZES,
    VOCABULARY,
    Architecture,
    attention,
    ends,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="llama",
        gguf="llama",
        class_name="LlamaForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=True), *MLP),
        settings=(*SIZES, *HEAD_SIZES, *VOCABULARY),
        constants={"hidden_act": "silu"},
    )
)
