"""Names and layouts of architectures: one table a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.formats.architecture_tables import (
    gemma2,
    gemma3,
    llama,
    mistral,
    mixtral,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from lbrx.formats.architecture_tables.table import Architecture, Rule, Setting

_MODULES = (llama, mistral, mixtral, qwen2, qwen3, gemma2, gemma3, phi3, smollm3)
ARCHITECTURES: dict[str, Architecture] = {
    module.ARCHITECTURE.model_type: module.ARCHITECTURE for module in _MODULES
}
# The whole of a multimodal model; its language part is what we know.
_ALIASES = {"gemma3": "gemma3_text"}


def of_config(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture that a config.json names."""
    name = str(config.get("model_type"))
    return ARCHITECTURES.get(_ALIASES.get(name, name))


def of_gguf(metadata: Mapping[str, Any]) -> Architecture | None:
    """The architecture that a GGUF names. Mistral is called llama there, which it equals."""
    name = metadata.get("general.architecture")
    if name == "llama" and metadata.get("llama.expert_count"):
        return ARCHITECTURES["mixtral"]
    return next((a for a in ARCHITECTURES.values() if a.gguf == name), None)


__all__ = ["ARCHITECTURES", "Architecture", "Rule", "Setting", "of_config", "of_gguf"]
