"""Gemma 2: four norms in each layer. The model multiplies by 1 + weight, which GGUF stores."""

from lbrx.files.formats.architecture_tables.table import (
    HEAD_SIZES,
    MLP,
    SIZES,
    WINDOW,
    Architecture,
    Setting,
    attention,
    ends,
    layer,
    register,
)

GEMMA_NORMS = (
    layer("input_layernorm", "attn_norm", shift=1),
    layer("post_attention_layernorm", "post_attention_norm", shift=1),
    layer("pre_feedforward_layernorm", "ffn_norm", shift=1),
    layer("post_feedforward_layernorm", "post_ffw_norm", shift=1),
)
CAPS = (
    Setting("attn_logit_softcapping", "attn_logit_softcapping"),
    Setting("final_logit_softcapping", "final_logit_softcapping"),
)

ARCHITECTURE = register(
    Architecture(
        model_type="gemma2",
        gguf="gemma2",
        class_name="Gemma2ForCausalLM",
        rules=(*ends(shift=1), *GEMMA_NORMS, *attention(in_pairs=False), *MLP),
        settings=(*SIZES, *HEAD_SIZES, *WINDOW, *CAPS),
        constants={"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        scaled_by_width=46,
        far_every=2,
    )
)
