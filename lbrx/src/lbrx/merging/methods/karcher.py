"""The Riemannian mean of the models on a sphere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lbrx.merging.methods.method import Method, Parameter, Parents
from lbrx.merging.methods.statistics import gram
from lbrx.merging.methods.weighted_sums import mean, weighted_sum
from lbrx.tensors import Tensor

PARALLEL = 1e-9  # 1 - cos of vectors that have one direction
Vector = NDArray[np.float64]


def karcher(parents: Parents) -> Tensor:
    """The Karcher mean of the unit vectors x_i / norm(x_i), times the mean of the norms.

    The mean m has the least sum of squared angles to all of them. Each iteration averages
    a / sin(a) (u_i - cos(a) m), the ways from m to the u_i, and follows the average along the
    sphere, until it is shorter than `tol`. All iterates are sums c_i u_i, so the iteration needs
    only the inner products of the models.
    """
    tensors, tol = parents.tensors, parents.parameters["tol"]
    if len(tensors) == 1:
        return tensors[0]
    products = gram(tensors)
    norms = np.sqrt(np.diag(products))
    used = np.flatnonzero(norms > tol)
    if not used.size:
        return weighted_sum(tensors, [0.0] * len(tensors))
    cosines = (products / np.outer(norms, norms).clip(min=1e-300))[np.ix_(used, used)]
    if used.size == len(tensors) and (cosines >= 1 - PARALLEL).all():
        return mean(tensors, [1 / len(tensors)] * len(tensors))
    shares = _mean_direction(cosines, parents.parameters["max_iter"], tol)
    weights = np.zeros(len(tensors))
    weights[used] = shares / norms[used] * norms.mean()
    return weighted_sum(tensors, [float(w) for w in weights])


def _mean_direction(cosines: Vector, most: int, tol: float) -> Vector:
    """The coefficients of the mean, given the inner products of the unit vectors."""
    count = len(cosines)

    def norm(c: Vector) -> float:
        return math.sqrt(max(float(c @ cosines @ c), 0.0))

    average = np.full(count, 1 / count)
    length = norm(average)
    at: Vector = np.eye(count)[0] if length < tol else average / length
    for _ in range(most):
        dots = (cosines @ at).clip(-1, 1)
        angles = np.arccos(dots)
        ways = np.where(angles < tol, 0.0, angles / np.sin(np.maximum(angles, tol))) / count
        step = ways - (ways @ dots) * at
        length = norm(step)
        if length < tol:
            break
        at = np.cos(length) * at + np.sin(length) / length * step
        at = at / max(norm(at), tol)
    return at


METHOD = Method(
    "karcher",
    karcher,
    "the Riemannian mean of the models on a sphere",
    parameters=(
        Parameter("max_iter", int, "the most iterations", 10, least=0),
        Parameter("tol", float, "the step at which to stop", 1e-5, least=0),
    ),
)
