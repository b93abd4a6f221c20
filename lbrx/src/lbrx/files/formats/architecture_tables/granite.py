"""Granite 3: Llama with factors."""

from lbrx.files.formats.architecture_tables.table import (
    MLP,
    NORMS,
    SIZES,
    VOCABULARY,
    Architecture,
    Setting,
    attention,
    ends,
    register,
)

FACTORS = (
    Setting("attention_multiplier", "attention.scale"),
    Setting("embedding_multiplier", "embedding_scale"),
    Setting("residual_multiplier", "residual_scale"),
    Setting("logits_scaling", "logit_scale"),
)

ARCHITECTURE = register(
    Architecture(
        model_type="granite",
        gguf="granite",
        class_name="GraniteForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=True), *MLP),
        settings=(*SIZES, *VOCABULARY, *FACTORS),
        constants={"hidden_act": "silu"},
    )
)
