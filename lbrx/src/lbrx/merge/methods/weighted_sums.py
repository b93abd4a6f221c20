"""Weighted sums of tensors, exact where the mathematics says that the result is a parent."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx import dtype as dt
from lbrx.tensor import Tensor, tensor


def single(number: float) -> Tensor:
    """A number that makes an operation with 16-bit operands one of float32: a cast less."""
    return tensor(number, dtype=dt.float32, device="cpu")


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum of one or more tensors, from the first on."""
    result: Tensor = sum(parts[1:], start=parts[0])
    return result


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum w_i x_i in float32. Tensors of weight 0 are left out, and one of weight 1 alone is
    returned as it is."""
    used = [(x, w) for x, w in zip(tensors, weights, strict=True) if w != 0]
    match used:
        case []:
            return tensors[0].astype(dt.float32) * 0.0
        case [(x, 1)]:
            return x
    return sum_of([x * single(w) for x, w in used])


def mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted sum for weights that add up to 1. Where no weight is negative, the result is
    held between the smallest and the largest operand: rounding cannot leave that range, so the mean
    of equal values is that value."""
    used = [(x, w) for x, w in zip(tensors, weights, strict=True) if w != 0]
    result = weighted_sum([x for x, _ in used], [w for _, w in used])
    if len(used) == 1 or any(w < 0 for _, w in used):
        return result
    low = high = used[0][0]
    for x, _ in used[1:]:
        low, high = low.minimum(x), high.maximum(x)
    return result.maximum(low).minimum(high)


def added(base: Tensor | None, change: Tensor) -> Tensor:
    """base + change in float32. A change of 0 keeps the base's bits, also those of -0."""
    if base is None:
        return change
    start = base.astype(dt.float32)
    return (change == 0).where(start, start + change)
