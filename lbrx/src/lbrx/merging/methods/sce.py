"""SCE: select what varies between the models, calculate their weights, erase other signs."""

from __future__ import annotations

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.statistics import differences, total
from lbrx.merging.methods.weighted_sums import added, sum_of
from lbrx.tensors import Tensor
from lbrx.tensors.core import apply

SMALLEST = 1e-6


def sce(parents: Parents) -> Tensor:
    """b + sum_i w_i d_i / sum_i w_i over the d_i that have the sign of sum_i d_i.

    w_i = mean(d_i^2), divided by the sum over the models. With `select_topk` below 1 only that
    share of the elements whose variance over the models is not 0 is used, the largest ones.
    """
    assert parents.base is not None
    if not parents.base.size:
        return parents.base
    changes = differences(parents.tensors, parents.base)
    share = parents.parameters["select_topk"]
    if share < 1:
        mask = _most_varied(changes, share)
        changes = [mask.where(d, 0.0) for d in changes]
    squares = [total(d * d) / d.size for d in changes]
    sum_of_squares = sum(squares)
    count = len(changes)
    weights = [s / sum_of_squares if sum_of_squares >= SMALLEST else 1 / count for s in squares]
    signs = sum_of(changes)
    agree = [apply("agreeing", d, signs) for d in changes]
    change = sum_of([d * w for d, w in zip(agree, weights, strict=True)])
    counted = [apply("agreeing", d, signs, weight=w) for d, w in zip(changes, weights, strict=True)]
    return added(parents.base, change, sum_of(counted).maximum(SMALLEST))


def _most_varied(changes: list[Tensor], share: float) -> Tensor:
    """The mask of the elements with the largest variance over the models."""
    mean = sum_of(changes) / len(changes)
    variance = sum_of([(d - mean) * (d - mean) for d in changes]) / len(changes)
    varied = total((variance != 0).astype(dt.float32))
    kept = int(np.float32(varied) * np.float32(share))
    mask: Tensor = apply("magnitude_mask", variance, first=0, last=kept)
    return mask


METHOD = Method(
    "sce",
    sce,
    "differences weighted by their size, where the models agree on the sign",
    parameters=(
        Parameter("select_topk", float, "the share of elements to use", 1.0, least=0, most=1),
        Parameter("int8_mask", bool, "accepted for compatibility, without effect", False),
    ),
    base=Base.REQUIRED,
)
