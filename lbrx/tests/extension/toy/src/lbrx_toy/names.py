"""The names that the tensors and settings of an architecture have in files."""

from __future__ import annotations

from lbrx.extension.files import (
    HEAD_SIZES,
    MLP,
    NORMS,
    SIZES,
    VOCABULARY,
    Architecture,
    attention,
    ends,
    register_architecture,
)

TOY = register_architecture(
    Architecture(
        model_type="toy",
        gguf="toyllm",
        class_name="ToyForCausalLM",
        rules=(*ends(), *NORMS, *attention(in_pairs=True), *MLP),
        settings=(*SIZES, *HEAD_SIZES, *VOCABULARY),
        aliases=("toy_vision",),
    )
)
