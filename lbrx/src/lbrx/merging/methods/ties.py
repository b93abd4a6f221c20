"""TIES: the largest differences of each model, where the models agree on the sign."""

from __future__ import annotations

from lbrx.merge.methods.masks import KeptDifferences, largest
from lbrx.merge.methods.method import Parents
from lbrx.merge.methods.task_vectors import method
from lbrx.tensor import Tensor


def _keep_largest(parents: Parents, index: int, base: Tensor) -> KeptDifferences:
    return largest(parents.tensors[index], base, parents.own[index]["density"])


METHOD = method(
    "ties",
    "the largest differences of each model, where the models agree on the sign",
    _keep_largest,
    consensus=True,
    normalize=True,
)
"""Keep the density n largest abs(d_i) of a tensor, then sign consensus."""
