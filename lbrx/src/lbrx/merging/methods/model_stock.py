"""The mean of the models, drawn towards the base by how much their changes agree."""

from __future__ import annotations

import itertools

import numpy as np

from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.statistics import differences, gram, stored
from lbrx.merging.methods.weighted_sums import mean
from lbrx.tensors import Tensor

SMALLEST = 1e-6  # product of norms, and denominator


def model_stock(parents: Parents) -> Tensor:
    """t sum x_i / N + (1 - t) b with t = N c / (1 + (N - 1) c).

    c is the mean cosine of x_i - b and x_j - b over all pairs: of whole tensors, or of rows with
    `filter_wise`. t = 0 where the denominator is within 1e-6 of 0.
    """
    assert parents.base is not None
    if parents.parameters["filter_wise"] and parents.base.ndim > 1:
        return _by_rows(parents)
    count = len(parents.tensors)
    products = gram(parents.tensors, parents.base)
    norms = np.sqrt(np.diag(products))
    cosines = (products / np.outer(norms, norms).clip(min=SMALLEST)).clip(-1, 1)
    cosine = float(cosines[np.triu_indices(count, 1)].mean())
    below = 1 + (count - 1) * cosine
    t = 0.0 if abs(below) < SMALLEST else count * cosine / below
    return mean([parents.base, *parents.tensors], [1 - t, *[t / count] * count])


def _by_rows(parents: Parents) -> Tensor:
    assert parents.base is not None
    base, *tensors = differences((parents.base, *parents.tensors), None)
    changes, count = [x - base for x in tensors], len(tensors)
    norms = [(d * d).sum(axis=-1, keepdims=True).sqrt() for d in changes]
    cosines = [
        (
            (changes[i] * changes[j]).sum(axis=-1, keepdims=True)
            / (norms[i] * norms[j]).maximum(SMALLEST)
        )
        .maximum(-1.0)
        .minimum(1.0)
        for i, j in itertools.combinations(range(count), 2)
    ]
    cosine: Tensor = sum(cosines[1:], start=cosines[0]) / len(cosines)
    below = 1 + (count - 1) * cosine
    t = stored((below.abs() < SMALLEST).where(0.0, count * cosine / below))
    average: Tensor = sum(tensors[1:], start=tensors[0]) / count
    return (t == 0).where(base, t * average + (1 - t) * base)


METHOD = Method(
    "model_stock",
    model_stock,
    "the mean of the models, drawn towards the base where their changes disagree",
    parameters=(Parameter("filter_wise", bool, "each row by itself", False),),
    base=Base.REQUIRED,
    models=(2, None),
)
