"""SmolLM 3: Llama in which every fourth layer has no RoPE."""

from lbrx.files.formats.architecture_tables.table import (
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
        model_type="smollm3",
        gguf="smollm3",
        class_name="SmolLM3ForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=True), *MLP),
        settings=(*SIZES, *VOCABULARY),
        constants={"hidden_act": "silu", "no_rope_layer_interval": 4},
    )
)
