"""Gemma 1: Llama's names, norms that GGUF stores with 1 added, tied embeddings."""

from lbrx.files.formats.architecture_tables.table import (
    HEAD_SIZES,
    MLP,
    SIZES,
    Architecture,
    attention,
    ends,
    layer,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="gemma",
        gguf="gemma",
        class_name="GemmaForCausalLM",
        rules=(
            *ends(shift=1),
            layer("input_layernorm", "attn_norm", shift=1),
            layer("post_attention_layernorm", "ffn_norm", shift=1),
            *attention(in_pairs=False),
            *MLP,
        ),
        settings=(*SIZES, *HEAD_SIZES),
        constants={"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
    )
)
