"""DELLA: differences dropped at random, smaller ones more often."""

from __future__ import annotations

from lbrx.errors import LbrxError
from lbrx.merging.methods.masks import KeptDifferences, drawn, largest
from lbrx.merging.methods.method import Parameter, Parents
from lbrx.merging.methods.task_vectors import method
from lbrx.tensors import Tensor

EPSILON = Parameter(
    "epsilon", float, "how far probabilities are from the density", 0.15, least=0, most=1
)


def _keep_by_rank(parents: Parents, index: int, base: Tensor) -> KeptDifferences:
    density, epsilon = (parents.own[index][name] for name in ("density", "epsilon"))
    if density <= 0:
        return largest(parents.tensors[index], base, density)
    if density < 1 and not epsilon < density < 1 - epsilon:
        problem = f"density {density} and epsilon {epsilon} give probabilities beyond 0 or 1"
        raise LbrxError(f"{parents.name}: {problem}: give epsilon < density < 1 - epsilon")
    return drawn(parents, index, base, density, epsilon)


DELLA = method(
    "della",
    "differences dropped at random by rank, and the others where the models agree on the sign",
    _keep_by_rank,
    consensus=True,
    normalize=True,
    rescale=True,
    own=(EPSILON,),
    is_random=True,
)
"""Keep an element of d_i with a probability from density - epsilon to density + epsilon, linear in
the rank of its magnitude in its row, then sign consensus."""

DELLA_LINEAR = method(
    "della_linear",
    "differences dropped at random by rank, and the weighted sum of the others",
    _keep_by_rank,
    rescale=True,
    own=(EPSILON,),
    is_random=True,
)
"""As della, without consensus."""
