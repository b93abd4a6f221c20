"""Seed-OSS: Llama's names, another one for the second norm in GGUF."""

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
        model_type="seed_oss",
        gguf="seed_oss",
        class_name="SeedOssForCausalLM",
        rules=(
            *ends(),
            layer("input_layernorm", "attn_norm"),
            layer("post_attention_layernorm", "post_attention_norm"),
            *attention(in_pairs=False),
            *MLP,
        ),
        settings=(*SIZES, *HEAD_SIZES),
        constants={"hidden_act": "silu"},
    )
)
