"""What is done when an object goes. It is apart because it imports Metal."""

from __future__ import annotations

from lbrx.metal.binding import AtDeallocation

__all__ = ["AtDeallocation"]
