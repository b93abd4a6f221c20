"""The block formats of GGUF files."""

from __future__ import annotations

from lbrx.quant.gguf.tensor_types import BY_ID, BY_NAME, SCHEMES, TYPES, GgufType, by_id

__all__ = ["BY_ID", "BY_NAME", "SCHEMES", "TYPES", "GgufType", "by_id"]
