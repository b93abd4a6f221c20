"""Weighted sums of tensors, exact where the mathematics says that the result is a parent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lbrx.arrays import dtype as dt
from lbrx.ops.merging import MOST_WEIGHTED
from lbrx.tensors import Tensor
from lbrx.tensors.core import apply


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum of one or more tensors, from the first on."""
    result: Tensor = sum(parts[1:], start=parts[0])
    return result


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum w_i x_i in float32. Tensors of weight 0 are left out, and one of weight 1 alone is
    returned as it is."""
    used = [(x, float(w)) for x, w in zip(tensors, weights, strict=True) if w != 0]
    match used:
        case []:
            return tensors[0].astype(dt.float32) * 0.0
        case [(x, 1.0)]:
            return x
        case [(x, w)]:
            return x.astype(dt.float32) * w
    groups = [used[i : i + MOST_WEIGHTED] for i in range(0, len(used), MOST_WEIGHTED)]
    return sum_of([_weighted("sum", group) for group in groups])


def mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted sum for weights that add up to 1. Where no weight is negative, the result is
    held between the smallest and the largest operand: rounding cannot leave that range, so the mean
    of equal values is that value."""
    used = [(x, float(w)) for x, w in zip(tensors, weights, strict=True) if w != 0]
    if len(used) < 2 or any(w < 0 for _, w in used):
        return weighted_sum(tensors, weights)
    while len(used) > 1:  # means of groups, then the mean of these
        groups = [used[i : i + MOST_WEIGHTED] for i in range(0, len(used), MOST_WEIGHTED)]
        used = [_group_mean(group) for group in groups]
    return used[0][0]


def _group_mean(group: Sequence[tuple[Tensor, float]]) -> tuple[Tensor, float]:
    """The mean of some tensors, and its weight."""
    total = math.fsum(w for _, w in group)
    if len(group) == 1:
        return group[0]
    return _weighted("mean", [(x, w / total) for x, w in group]), total


def _weighted(kind: str, group: Sequence[tuple[Tensor, float]]) -> Tensor:
    if len(group) == 1:
        return group[0][0].astype(dt.float32) * group[0][1]
    weights = dict(zip(("first", "second", "third", "fourth"), (w for _, w in group), strict=False))
    result: Tensor = apply("weighted", *(x for x, _ in group), kind=kind, **weights)
    return result


def added(
    base: Tensor | None, change: Tensor, divisor: Tensor | None = None, factor: float = 1.0
) -> Tensor:
    """base + change / divisor * factor in float32, where a divisor of 0 is 1. A change of 0 keeps
    the base's bits, also those of -0."""
    if base is None:
        return change
    given = (base, change) if divisor is None else (base, change, divisor)
    result: Tensor = apply("changed", *given, factor=float(factor))
    return result
