"""Mistral: a Llama to llama.cpp, without the sliding window of the first ones."""

from lbrx.formats.architectures.table import (
    HEAD_SIZES,
    MLP,
    NORMS,
    SIZES,
    VOCABULARY,
    Architecture,
    attention,
    ends,
)

ARCHITECTURE = Architecture(
    model_type="mistral",
    gguf="llama",
    class_name="MistralForCausalLM",
    rules=(*ends(), *NORMS, *attention(in_pairs=True), *MLP),
    settings=(*SIZES, *HEAD_SIZES, *VOCABULARY),
    constants={"hidden_act": "silu"},
)
