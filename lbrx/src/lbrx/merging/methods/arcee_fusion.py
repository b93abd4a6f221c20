"""The base, with the important changes of another model."""

from __future__ import annotations

from lbrx.merging.methods.method import Base, Method, Parents
from lbrx.merging.methods.statistics import as_rows, differences, stored, total
from lbrx.merging.methods.weighted_sums import added
from lbrx.tensors import Tensor
from lbrx.tensors.core import apply

EPSILON = 1e-8  # added to probabilities


def arcee_fusion(parents: Parents) -> Tensor:
    """b + d where abs(d) KL(softmax x, softmax b) >= median + 1.5 (q3 - q1), else b.

    d = x - b, the divergence is that of rows, and the quartiles are those of all elements of a
    tensor. (mergekit takes the quartiles of a million samples of larger tensors.)
    """
    assert parents.base is not None
    if not parents.base.size:
        return parents.base
    x, base = differences((*map(as_rows, parents.tensors), as_rows(parents.base)), None)
    p, q = x.softmax(axis=-1) + EPSILON, base.softmax(axis=-1) + EPSILON
    divergence = stored((p * (p / q).log()).sum(axis=-1, keepdims=True))
    # Rounding can make a divergence of 0 negative.
    importance = stored((x - base).abs() * divergence.maximum(0.0))
    low, middle, high = (_quantile(importance, share) for share in (0.25, 0.5, 0.75))
    important = (importance >= middle + 1.5 * (high - low)).reshape(*parents.base.shape)
    (change,) = differences(parents.tensors, parents.base)
    return added(parents.base, important.where(change, 0.0))


def _quantile(x: Tensor, share: float) -> float:
    """The element at a share of the ascending order, rounded down."""
    rank = x.size - 1 - int(share * (x.size - 1))
    return total(apply("magnitude_mask", x, first=rank, last=rank + 1).where(x, 0.0))


METHOD = Method(
    "arcee_fusion",
    arcee_fusion,
    "the base with the important changes of another model",
    base=Base.REQUIRED,
    models=(1, 1),
)
