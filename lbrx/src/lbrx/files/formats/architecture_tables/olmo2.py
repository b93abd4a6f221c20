"""OLMo 2 and 3: norms after each part and over all queries and keys; 3 has windows."""

from dataclasses import replace

from lbrx.files.formats.architecture_tables.table import (
    HEAD_NORMS,
    MLP,
    NORMS_AFTER,
    SIZES,
    WINDOW,
    Architecture,
    attention,
    ends,
    register,
)

ARCHITECTURE = register(
    Architecture(
        model_type="olmo2",
        gguf="olmo2",
        class_name="Olmo2ForCausalLM",
        rules=(*ends(), *NORMS_AFTER, *attention(in_pairs=False), *HEAD_NORMS, *MLP),
        settings=SIZES,
        constants={"hidden_act": "silu"},
    )
)
WITH_WINDOWS = register(
    replace(
        ARCHITECTURE,
        model_type="olmo3",
        class_name="Olmo3ForCausalLM",
        gguf_marker=WINDOW[0].gguf,
        settings=(*SIZES, *WINDOW),
        far_every=4,
    )
)
