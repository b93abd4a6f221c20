"""The base, with the other model's values where both are near."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.tensors import Tensor

SMALLEST = 1e-6


def nearswap(parents: Parents) -> Tensor:
    """w x + (1 - w) b with w = t / max(abs(b - x), 1e-6), held between 0 and 1.

    t = 0 is the base, bit for bit.
    """
    assert parents.base is not None
    t = parents.parameters["t"]
    if t <= 0:
        return parents.base
    base, x = parents.base.astype(dt.float32), parents.tensors[0].astype(dt.float32)
    share: Tensor = (t / (base - x).abs().maximum(SMALLEST)).minimum(1.0)
    between: Tensor = share * x + (1 - share) * base
    return between.maximum(base.minimum(x)).minimum(base.maximum(x))


METHOD = Method(
    "nearswap",
    nearswap,
    "the base, with the other model's values where both are near",
    parameters=(Parameter("t", float, "the distance that counts as near", required=True),),
    base=Base.REQUIRED,
    models=(1, 1),
    is_elementwise=True,
)
