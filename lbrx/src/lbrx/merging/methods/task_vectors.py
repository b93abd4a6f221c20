"""What the methods on task vectors d_i = x_i - b share: b + lambda sum of weighted d_i."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lbrx.merging.methods.masks import KeptDifferences
from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.weighted_sums import added, sum_of
from lbrx.tensors import Tensor
from lbrx.tensors.core import apply
from lbrx.tensors.evaluation import start

Sparsify = Callable[[Parents, int, Tensor], KeptDifferences]
"""The part of a model's task vector that is kept, given its place and the base."""

WEIGHT = Parameter("weight", float, "the model's share", required=True)
DENSITY = Parameter("density", float, "the share of differences to keep", 1.0, least=0, most=1)


def shared(normalize: bool, rescale: bool) -> tuple[Parameter, ...]:
    """The parameters of all these methods, with their defaults."""
    return (
        Parameter("normalize", bool, "divide by the sum of the weights", normalize),
        Parameter("rescale", bool, "scale what is kept to the sum of all magnitudes", rescale),
        Parameter("lambda", float, "factor of the merged differences", 1.0),
        Parameter("int8_mask", bool, "accepted for compatibility, without effect", False),
    )


def method(
    name: str,
    text: str,
    sparsify: Sparsify | None,
    *,
    consensus: bool = False,
    normalize: bool = False,
    rescale: bool = False,
    own: tuple[Parameter, ...] = (),
    is_random: bool = False,
) -> Method:
    """A method that keeps parts of the task vectors, with or without sign consensus."""

    def function(parents: Parents) -> Tensor:
        return merged(parents, sparsify, consensus)

    return Method(
        name,
        function,
        text,
        parameters=shared(normalize, rescale),
        own=(WEIGHT, DENSITY, *own),
        base=Base.REQUIRED,
        is_random=is_random,
        is_elementwise=sparsify is None and not consensus,
    )


def merged(parents: Parents, sparsify: Sparsify | None, consensus: bool) -> Tensor:
    """b + lambda sum_i w_i s_i d_i over the kept parts, divided by the weights with `normalize`.

    s_i is the factor of `rescale`. With consensus an element of d_i counts where its sign is that
    of the sum of all weighted ones, and it is divided by the weights that count.
    """
    base, given = parents.base, parents.parameters
    assert base is not None
    weights = [float(own["weight"]) for own in parents.own]
    kept = [
        KeptDifferences(x, base) if sparsify is None else sparsify(parents, i, base)
        for i, x in enumerate(parents.tensors)
    ]
    start([part.norms for part in kept])  # together, before the first is waited for
    scales = [part.rescaling() if given["rescale"] else 1.0 for part in kept]
    parts = [part.values(w * s) for part, w, s in zip(kept, weights, scales, strict=True)]
    if consensus:
        change = agreed(parts)
        divisor = agreed(parts, weights) if given["normalize"] else None
        return added(base, change, divisor, given["lambda"])
    total = sum(weights)
    divided = given["normalize"] and abs(total) >= 1e-8
    return added(
        base, sum_of(parts), factor=given["lambda"] / total if divided else given["lambda"]
    )


def agreed(parts: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The sum of the parts, or of their weights, where a part's sign is that of the sum of all. A
    sum of 0 counts as positive; parts of 0 never agree."""
    total = sum_of(parts)
    given: list[dict[str, float]] = [{"weight": w} for w in weights or ()] or [{}] * len(parts)
    return sum_of([apply("agreeing", p, total, **g) for p, g in zip(parts, given, strict=True)])
