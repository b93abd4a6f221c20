"""The weighted mean of the models, or their weighted sum."""

from __future__ import annotations

from lbrx.errors import LbrxError
from lbrx.merging.methods.method import Method, Parameter, Parents
from lbrx.merging.methods.weighted_sums import mean, weighted_sum
from lbrx.tensors import Tensor


def linear(parents: Parents) -> Tensor:
    """sum w_i x_i, divided by sum w_i with `normalize`."""
    weights = [own["weight"] for own in parents.own]
    if not parents.parameters["normalize"]:
        return weighted_sum(parents.tensors, weights)
    total = sum(weights)
    if total == 0:
        problem = "the weights add up to 0, which cannot be normalized"
        raise LbrxError(f"{parents.name}: {problem}: change them, or set normalize: false")
    return mean(parents.tensors, [weight / total for weight in weights])


METHOD = Method(
    "linear",
    linear,
    "the weighted mean of the models",
    parameters=(Parameter("normalize", bool, "divide by the sum of the weights", True),),
    own=(Parameter("weight", float, "the model's share", required=True),),
    is_elementwise=True,
)
