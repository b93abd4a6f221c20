"""Gradients before an update: clipped, and added up over several batches."""

from __future__ import annotations

from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.tensors.core import Tensor, call
from lbrx.trees import leaves, tree_map


def clip_grad_norm(grads: Any, max_norm: float) -> tuple[Any, Tensor]:
    """A tree of gradients, scaled down so that the norm of all together is at most max_norm, and
    the norm that they had. The sum of squares is in at least float32."""
    squares = [
        x.astype(dt.promote(x.dtype, dt.float32)).square().sum()
        for x in leaves(grads)
        if isinstance(x, Tensor)
    ]
    if not squares:
        raise ValueError("there are no gradients to clip: give a tree with tensors")
    total = squares[0]
    for each in squares[1:]:
        total = total + each
    norm = total.sqrt()
    factor = call("minimum", max_norm / (norm + 1e-6), 1)
    return (
        tree_map(lambda g: g * factor.astype(g.dtype) if isinstance(g, Tensor) else g, grads),
        norm,
    )


class Accumulator:
    """Adds up the gradients of several batches, for one update by their mean.

    >>> total = lbrx.optim.Accumulator()
    >>> total.add({"w": lbrx.ones(2)})
    >>> total.add({"w": lbrx.ones(2) * 3})
    >>> total.mean()["w"].tolist()
    [2.0, 2.0]
    """

    def __init__(self) -> None:
        self._sum: Any = None
        self.count = 0
        """How many were added since the last mean."""

    def add(self, gradients: Any, weight: float | Tensor = 1.0) -> None:
        """Add a tree of gradients times a weight."""
        own = tree_map(lambda g: g * weight if isinstance(g, Tensor) else g, gradients)
        self._sum = own if self._sum is None else tree_map(_sum, self._sum, own)
        self.count += 1

    def mean(self) -> Any:
        """The mean of what was added; the sum begins anew."""
        if not self.count:
            raise ValueError("no gradients were added: call add first")
        found = tree_map(lambda g: g * (1 / self.count) if isinstance(g, Tensor) else g, self._sum)
        self._sum, self.count = None, 0
        return found


def _sum(x: Any, y: Any) -> Any:
    return x + y if isinstance(x, Tensor) else x
