"""One of each thing that a distribution can add to lbrx."""

from __future__ import annotations

from lbrx.extension.tensors import Tensor, apply

__all__ = ["neighbours"]


def neighbours(x: Tensor) -> Tensor:
    """The sums of each two neighbours in a row."""
    result: Tensor = apply("toy_neighbours", x)
    return result
