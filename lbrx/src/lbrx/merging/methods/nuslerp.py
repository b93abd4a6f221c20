"""Spherical interpolation of two models, or of their differences from a base."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.statistics import differences, gram, stored
from lbrx.merging.methods.weighted_sums import added, mean, weighted_sum
from lbrx.tensors import Tensor

SMALLEST_NORM = 1e-7
# 1 - cos^2 up to which an arc is a line. The two differ by a tenth of it: float32 cannot tell.
PARALLEL = 1e-6


def nuslerp(parents: Parents) -> Tensor:
    """Slerp at t = w_2 / (w_1 + w_2), or 0.5 if abs(w_1 + w_2) < 1e-6.

    Without `nuslerp_flatten` each vector along the last axis turns by itself; with
    `nuslerp_row_wise` too, those along the first axis. With a base x_i - b are interpolated and
    b is added.
    """
    first, second = (own["weight"] for own in parents.own)
    t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
    if t in (0, 1):
        return parents.tensors[int(t)]
    pair = differences(parents.tensors, parents.base)
    if parents.parameters["nuslerp_flatten"] or not pair[0].ndim:
        products = gram(parents.tensors, parents.base)
        return added(parents.base, _whole(pair, products, t))
    axis = 0 if parents.parameters["nuslerp_row_wise"] else -1
    return added(parents.base, _along(pair, t, axis))


def _whole(pair: list[Tensor], products: NDArray[np.float64], t: float) -> Tensor:
    norms = [max(math.sqrt(products[i, i]), SMALLEST_NORM) for i in range(2)]
    cosine = min(max(products[0, 1] / math.prod(norms), -1.0), 1.0)
    if not 1 - cosine * cosine > PARALLEL:  # also NaN
        return mean(pair, [1 - t, t])
    angle = math.acos(cosine)
    shares = [math.sin((1 - t) * angle), math.sin(t * angle)]
    return weighted_sum(pair, [share / math.sin(angle) for share in shares])


def _along(pair: list[Tensor], t: float, axis: int) -> Tensor:
    """One angle for each vector along an axis."""
    norms = [(x * x).sum(axis=axis, keepdims=True).sqrt().maximum(SMALLEST_NORM) for x in pair]
    dots = (pair[0] * pair[1]).sum(axis=axis, keepdims=True)
    cosine = (dots / (norms[0] * norms[1])).maximum(-1.0).minimum(1.0)
    parallel = stored(1 - cosine * cosine <= PARALLEL)
    angle = parallel.where(0.5 * math.pi, cosine.acos())
    shares = [((1 - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin()]
    first, second = map(stored, shares)
    arc = first * pair[0] + second * pair[1]
    return parallel.where(mean(pair, [1 - t, t]), arc)


METHOD = Method(
    "nuslerp",
    nuslerp,
    "spherical interpolation of two models by their weights",
    parameters=(
        Parameter("nuslerp_flatten", bool, "take each tensor as one vector", True),
        Parameter("nuslerp_row_wise", bool, "without flattening: along the first axis", False),
    ),
    own=(Parameter("weight", float, "the model's share", required=True),),
    base=Base.OPTIONAL,
    models=(2, 2),
)
