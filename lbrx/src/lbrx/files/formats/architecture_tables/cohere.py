"""Command R and R7B (Cohere 1 and 2): one layer norm for attention and MLP, tied embeddings."""

from dataclasses import replace

from lbrx.files.formats.architecture_tables.table import (
    HEAD_NORMS,
    LAYER_NORM_SIZES,
    MLP,
    VOCABULARY,
    WINDOW,
    Architecture,
    Setting,
    attention,
    ends,
    layer,
    register,
)

RULES = (*ends()[:2], layer("input_layernorm", "attn_norm"), *attention(in_pairs=False), *MLP)
SETTINGS = (
    *LAYER_NORM_SIZES,
    *VOCABULARY,
    Setting("layer_norm_eps", "attention.layer_norm_epsilon"),
    Setting("logit_scale", "logit_scale"),
)

ARCHITECTURE = register(
    Architecture(
        model_type="cohere",
        gguf="command-r",
        class_name="CohereForCausalLM",
        rules=(*RULES, *HEAD_NORMS),
        settings=SETTINGS,
        constants={"hidden_act": "silu", "tie_word_embeddings": True},
        defaults={"layer_norm_eps": 1e-5},
    )
)
WITH_WINDOWS = register(
    replace(
        ARCHITECTURE,
        model_type="cohere2",
        gguf="cohere2",
        class_name="Cohere2ForCausalLM",
        rules=RULES,
        settings=(*SETTINGS, *WINDOW),
        defaults={"layer_norm_eps": 1e-5, "sliding_window": 4096},
        far_every=4,
    )
)
