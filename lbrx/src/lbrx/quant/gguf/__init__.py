"""The block formats of GGUF files."""

from __future__ import annotations

from lbrx.quant.gguf import iq, k, legacy, tables, ternary
from lbrx.quant.gguf.types import BY_ID, BY_NAME, TYPES, GgufType, by_id

SCHEMES = (*legacy.SCHEMES, *k.SCHEMES, *tables.SCHEMES, *ternary.SCHEMES, *iq.SCHEMES)

__all__ = ["BY_ID", "BY_NAME", "SCHEMES", "TYPES", "GgufType", "by_id"]
