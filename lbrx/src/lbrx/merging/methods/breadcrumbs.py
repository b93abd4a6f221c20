"""Model breadcrumbs: differences that are neither very large nor small."""

from __future__ import annotations

from lbrx.merging.methods.masks import KeptDifferences, ranked
from lbrx.merging.methods.method import Parameter, Parents
from lbrx.merging.methods.task_vectors import method
from lbrx.tensors import Tensor

GAMMA = Parameter(
    "gamma", float, "the share of the largest differences to drop", 0.01, least=0, most=1
)


def _keep_middle(parents: Parents, index: int, base: Tensor) -> KeptDifferences:
    """Without the int(gamma n) largest, as many as the density says; fewer of the largest are
    dropped where the density needs them."""
    x, own = parents.tensors[index], parents.own[index]
    kept, top = int(own["density"] * x.size), int(own["gamma"] * x.size)
    smallest = max(0, x.size - kept - top)
    last = x.size - smallest
    return ranked(x, base, own["density"], last - kept, last)


BREADCRUMBS = method(
    "breadcrumbs",
    "differences that are neither very large nor small",
    _keep_middle,
    own=(GAMMA,),
)
"""Drop the gamma n largest abs(d_i) of a tensor, then the smallest, to keep density n."""

BREADCRUMBS_TIES = method(
    "breadcrumbs_ties",
    "differences that are neither very large nor small, where the models agree on the sign",
    _keep_middle,
    consensus=True,
    own=(GAMMA,),
)
"""As breadcrumbs, then sign consensus."""
