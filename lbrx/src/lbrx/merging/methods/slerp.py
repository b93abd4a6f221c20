"""Spherical interpolation between the base and another model."""

from __future__ import annotations

import math

from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.statistics import gram
from lbrx.merging.methods.weighted_sums import mean, weighted_sum
from lbrx.tensors import Tensor

PARALLEL = 0.9995  # from this cosine on, the arc is a line
SMALLEST_NORM = 1e-8


def slerp(parents: Parents) -> Tensor:
    """sin((1-t) a) / sin(a) b + sin(t a) / sin(a) x, with the angle a between the whole tensors.

    (1-t) b + t x if abs(cos(a)) > 0.9995. t = 0 is b and t = 1 is x, bit for bit.
    """
    assert parents.base is not None
    t, pair = parents.parameters["t"], [parents.base, *parents.tensors]
    if t in (0, 1):
        return pair[int(t)]
    products = gram(pair)
    norms = [math.sqrt(products[i, i]) for i in range(2)]
    scale = math.prod(norm if norm > SMALLEST_NORM else 1.0 for norm in norms)
    cosine = min(max(products[0, 1] / scale, -1.0), 1.0)
    if not abs(cosine) <= PARALLEL:  # also NaN
        return mean(pair, [1 - t, t])
    angle = math.acos(cosine)
    shares = [math.sin((1 - t) * angle), math.sin(t * angle)]
    return weighted_sum(pair, [share / math.sin(angle) for share in shares])


METHOD = Method(
    "slerp",
    slerp,
    "spherical interpolation from the base to the other model",
    parameters=(Parameter("t", float, "0 is the base, 1 the other model", required=True),),
    base=Base.REQUIRED,
    models=(1, 1),
)
