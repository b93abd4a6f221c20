"""EXAONE 4: norms after each part and on the heads of queries and keys; windows in large ones."""

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
        model_type="exaone4",
        gguf="exaone4",
        class_name="Exaone4ForCausalLM",
        rules=(*ends(), *NORMS_AFTER, *attention(in_pairs=False), *HEAD_NORMS, *MLP),
        settings=(*SIZES, *WINDOW),
        constants={"hidden_act": "silu"},
        far_every=4,
    )
)
