"""Several models interpolated on a sphere."""

from __future__ import annotations

import numpy as np

from lbrx.errors import LbrxError
from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.statistics import differences, gram
from lbrx.merging.methods.weighted_sums import added, mean, weighted_sum
from lbrx.tensors import Tensor

PARALLEL = 1e-9  # 1 - cos of vectors that have one direction
SHORTEST = 1e-3  # a sum of unit vectors, by inner products of float32, has no direction below it


def multislerp(parents: Parents) -> Tensor:
    """The direction of sum w_i u_i with u_i = x_i / (norm(x_i) + eps), times sum w_i norm(x_i).

    The method takes the average in the tangent space at that direction, where it is 0, and maps it
    back to the sphere. With a base all is done on x_i - b, and b is added.
    """
    if len(parents.tensors) == 1:
        return parents.tensors[0]
    eps = parents.parameters["eps"]
    weights = np.array([own["weight"] for own in parents.own], np.float64)
    if parents.parameters["normalize_weights"]:
        weights = weights / _nonzero(parents, float(weights.sum()))
    vectors = differences(parents.tensors, parents.base)
    products = gram(parents.tensors, parents.base)
    norms = np.sqrt(np.diag(products))
    if parents.base is not None and not norms.any():
        return parents.base
    units = 1 / (norms + eps)
    length = float(np.sqrt(max((weights * units) @ products @ (weights * units), 0.0)))
    cancelled = length < max(eps, SHORTEST)
    if cancelled and len(vectors) > 2:
        problem = "the directions of the models cancel each other out"
        raise LbrxError(f"{parents.name}: {problem}: change their weights")
    if cancelled or (products * np.outer(units, units) >= 1 - PARALLEL).all():
        combine = mean if abs(weights.sum() - 1) < 1e-12 else weighted_sum
        return added(parents.base, combine(vectors, [float(w) for w in weights]))
    scale = float(weights @ norms) / length
    return added(parents.base, weighted_sum(vectors, [float(c) for c in weights * units * scale]))


def _nonzero(parents: Parents, total: float) -> float:
    if total == 0:
        problem = "the weights add up to 0, which cannot be normalized"
        raise LbrxError(f"{parents.name}: {problem}: change them, or set normalize_weights: false")
    return total


METHOD = Method(
    "multislerp",
    multislerp,
    "several models interpolated on a sphere",
    parameters=(
        Parameter("normalize_weights", bool, "divide the weights by their sum", True),
        Parameter("eps", float, "added to norms", 1e-8, least=0),
    ),
    own=(Parameter("weight", float, "the model's share", required=True),),
    base=Base.OPTIONAL,
)
