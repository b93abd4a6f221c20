"""DARE: differences dropped at random, and the others scaled up."""

from __future__ import annotations

from lbrx.merging.methods.masks import KeptDifferences, drawn
from lbrx.merging.methods.method import Parents
from lbrx.merging.methods.task_vectors import method
from lbrx.tensors import Tensor


def _keep_some(parents: Parents, index: int, base: Tensor) -> KeptDifferences:
    return drawn(parents, index, base, parents.own[index]["density"])


DARE_TIES = method(
    "dare_ties",
    "differences dropped at random, and the others where the models agree on the sign",
    _keep_some,
    consensus=True,
    rescale=True,
    is_random=True,
)
"""Keep each element of d_i with probability density, then sign consensus."""

DARE_LINEAR = method(
    "dare_linear",
    "differences dropped at random, and the weighted sum of the others",
    _keep_some,
    rescale=True,
    is_random=True,
)
"""Keep each element of d_i with probability density."""
