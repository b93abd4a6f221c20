"""RAM: differences of one model alone are kept whole, shared ones are averaged."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.arrays import dtype as dt
from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.statistics import differences, total
from lbrx.merging.methods.weighted_sums import added, sum_of
from lbrx.tensors import Tensor

EPSILON = Parameter("epsilon", float, "differences up to this size do not count", 1e-5, least=0)


def ram(parents: Parents) -> Tensor:
    """b + sum of the active d_i / their number, where d_i is active if abs(d_i) > epsilon."""
    return _merged(parents, [1.0] * len(parents.tensors))


def ramplus_tl(parents: Parents) -> Tensor:
    """As ram, with a d_i that is active alone times 1 + r clip(shared_i / alone_i, 0, alpha).

    shared_i and alone_i count the elements of a tensor where d_i is active with others and alone.
    """
    given = parents.parameters
    factors = []
    active, number = _active(parents)
    for own in active:
        alone = total((own & (number == 1)).astype(dt.float32))
        shared = total((own & (number > 1)).astype(dt.float32))
        ratio = shared / max(alone, given["epsilon"])
        factors.append(1 + given["r"] * min(max(ratio, 0.0), given["alpha"]))
    return _merged(parents, factors)


def _active(parents: Parents) -> tuple[list[Tensor], Tensor]:
    """Where each difference is active, and how many are."""
    epsilon = parents.parameters["epsilon"]
    active = [d.abs() > epsilon for d in differences(parents.tensors, parents.base)]
    return active, sum_of([a.astype(dt.float32) for a in active])


def _merged(parents: Parents, factors: Sequence[float]) -> Tensor:
    active, number = _active(parents)
    divisor = number.maximum(1.0)
    parts = []
    for own, d, factor in zip(
        active, differences(parents.tensors, parents.base), factors, strict=True
    ):
        part = d / divisor if factor == 1 else (number == 1).where(d * factor, d / divisor)
        parts.append(own.where(part, 0.0))
    return added(parents.base, sum_of(parts))


RAM = Method(
    "ram",
    ram,
    "differences of one model alone are kept whole, shared ones are averaged",
    parameters=(EPSILON,),
    base=Base.REQUIRED,
    is_elementwise=True,
)

RAMPLUS_TL = Method(
    "ramplus_tl",
    ramplus_tl,
    "as ram, with more weight for models that share much",
    parameters=(
        EPSILON,
        Parameter("r", float, "how much more", 0.1),
        Parameter("alpha", float, "the most that counts of shared / alone", 0.2),
    ),
    base=Base.REQUIRED,
)
