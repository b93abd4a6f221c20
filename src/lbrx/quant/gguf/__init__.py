"""The block formats of GGUF files."""

from __future__ import annotations

from lbrx.quant.gguf.types import BY_ID, BY_NAME, TYPES, GgufType, by_id

__all__ = ["BY_ID", "BY_NAME", "TYPES", "GgufType", "by_id"]
