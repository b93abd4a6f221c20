"""Names and layouts of architectures: one table in each module.

A new table is a module that calls `register`; those of this package are imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.files.formats.architecture_tables import (  # noqa: F401 - each registers its table
    cohere,
    ernie4_5,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    glm4,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen_moe,
    seed_oss,
    smollm3,
    starcoder2,
    table,
)
from lbrx.files.formats.architecture_tables.table import (
    ARCHITECTURES,
    Architecture,
    NameRule,
    Setting,
    register,
)


def of_config(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture that a config.json names."""
    name = str(config.get("model_type"))
    aliased = (a for a in ARCHITECTURES.whole().values() if name in a.aliases)
    return ARCHITECTURES.get(name) or next(aliased, None)


def of_gguf(metadata: Mapping[str, Any]) -> Architecture | None:
    """The architecture that a GGUF names. Mistral's files say llama, with the same layout."""
    name = metadata.get("general.architecture")
    found = [a for a in ARCHITECTURES.whole().values() if a.gguf == name]
    marked = [a for a in found if a.gguf_marker and metadata.get(f"{name}.{a.gguf_marker}")]
    return next(iter(marked or [a for a in found if not a.gguf_marker]), None)


__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "NameRule",
    "Setting",
    "of_config",
    "of_gguf",
    "register",
]
