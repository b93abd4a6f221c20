"""TIES: the largest differences of each model, where the models agree on the sign."""

from __future__ import annotations

from lbrx.merging.methods.masks import KeptDifferences, largest
from lbrx.merging.methods.method import Parents
from lbrx.merging.methods.task_vectors import method
from lbrx.tensors import Tensor


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
