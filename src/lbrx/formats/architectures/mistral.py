"""Mistral: Llama to llama.cpp, which has no sliding window for it."""

from lbrx.formats.architectures.table import (
    HEAD_SIZES,
    MLP,
    NORMS,
    SIZES,
    VOCABULARY,
    WINDOW,
    Architecture,
    attention,
    ends,
)

ARCHITECTURE = Architecture(
    model_type="mistral",
    gguf="llama",
    class_name="MistralForCausalLM",
    rules=(*ends(), *NORMS, *attention(in_pairs=True), *MLP),
    settings=(*SIZES, *HEAD_SIZES, *VOCABULARY, *WINDOW),
    constants={"hidden_act": "silu"},
)
