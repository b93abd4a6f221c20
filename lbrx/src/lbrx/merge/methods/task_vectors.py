"""What the methods on task vectors d_i = x_i - b share: b + lambda sum of weighted d_i."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lbrx.merge.methods.masks import KeptDifferences
from lbrx.merge.methods.method import Base, Method, Parameter, Parents
from lbrx.merge.methods.weighted_sums import added, sum_of
from lbrx.tensor import Tensor

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
    scales = [part.rescaling() if given["rescale"] else 1.0 for part in kept]
    parts = [part.values(w * s) for part, w, s in zip(kept, weights, scales, strict=True)]
    if consensus:
        agree = agreement(parts)
        change = chosen(agree, parts)
        if given["normalize"]:
            divisor = chosen(agree, weights)
            change = change / (divisor == 0).where(1.0, divisor)
    else:
        change, total = sum_of(parts), sum(weights)
        if given["normalize"] and abs(total) >= 1e-8:
            change = change / total
    return added(base, change if given["lambda"] == 1 else change * given["lambda"])


def agreement(parts: Sequence[Tensor]) -> list[Tensor]:
    """Where the sign of each part is that of the sum of all. A sum of 0 counts as positive; parts
    of 0 never agree."""
    positive = sum_of(parts) >= 0
    return [positive.where(part > 0, part < 0) for part in parts]


def chosen(agree: Sequence[Tensor], values: Sequence[Tensor | float]) -> Tensor:
    """The sum of the values that are chosen, element by element."""
    return sum_of([a.where(value, 0.0) for a, value in zip(agree, values, strict=True)])
