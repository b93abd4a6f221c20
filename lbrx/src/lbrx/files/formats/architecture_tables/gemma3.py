"""Gemma 3, text: Gemma 2 with norms on the heads of queries and keys, and two RoPE bases."""

from lbrx.files.formats.architecture_tables.gemma2 import CAPS, GEMMA_NORMS
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

ARCHITECTURE = register(
    Architecture(
        model_type="gemma3_text",
        gguf="gemma3",
        class_name="Gemma3ForCausalLM",
        rules=(
            *ends(shift=1),
            *GEMMA_NORMS,
            *attention(in_pairs=False),
            layer("self_attn.q_norm", "attn_q_norm", shift=1),
            layer("self_attn.k_norm", "attn_k_norm", shift=1),
            *MLP,
        ),
        settings=(
            *SIZES,
            *HEAD_SIZES,
            *WINDOW,
            *CAPS,
            Setting("rope_local_base_freq", "rope.freq_base_swa"),
        ),
        constants={"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        # The whole of a multimodal model; the table is for its language part.
        aliases=("gemma3",),
        scaled_by_width=62,
        far_every=6,
    )
)
