"""JSON of files that lbrx keeps and that anything may have changed since."""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """The value of a text. Raises ValueError for all that is wrong with it: also for nesting that
    is too deep and for integers that are too large for a float."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(text: str) -> int:
    value = int(text)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"the number {text[:20]}... is too large") from None
    return value
