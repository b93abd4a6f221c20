"""StarCoder 2: layer norms, an MLP without a gate, biases."""

from lbrx.files.formats.architecture_tables.table import (
    LAYER_NORM_SIZES,
    NORMS,
    Architecture,
    Setting,
    attention,
    ends,
    layer,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="starcoder2",
        gguf="starcoder2",
        class_name="Starcoder2ForCausalLM",
        rules=(
            *ends(),
            *NORMS,
            *attention(in_pairs=False),
            layer("mlp.c_fc", "ffn_up"),
            layer("mlp.c_proj", "ffn_down"),
        ),
        settings=(*LAYER_NORM_SIZES, Setting("norm_epsilon", "attention.layer_norm_epsilon")),
        constants={"hidden_act": "gelu_pytorch_tanh"},
        defaults={"norm_epsilon": 1e-5},
    )
)
