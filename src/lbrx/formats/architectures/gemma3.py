"""Gemma 3, text: Gemma 2 with norms on the heads of q and k and two RoPE bases."""

from lbrx.formats.architectures.gemma2 import CAPS, GEMMA_NORMS
from lbrx.formats.architectures.table import (
    HEAD_SIZES,
    MLP,
    SIZES,
    WINDOW,
    Architecture,
    Setting,
    attention,
    ends,
    layer,
)

ARCHITECTURE = Architecture(
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
    scaled_by_width=62,
)
