"""The weighted mean of the models, or their weighted sum."""

from __future__ import annotations

from lbrx import dtype as dt
from lbrx.errors import LbrxError
from lbrx.merge.methods.method import Method, Parameter, Parents
from lbrx.tensor import Tensor


def linear(parents: Parents) -> Tensor:
    """sum w_i x_i, divided by sum w_i with `normalize`."""
    weights = [own["weight"] for own in parents.own]
    if parents.parameters["normalize"]:
        total = sum(weights)
        if total == 0:
            problem = "the weights add up to 0, which cannot be normalized"
            raise LbrxError(f"{parents.name}: {problem}: change them, or set normalize: false")
        weights = [weight / total for weight in weights]
    first, *rest = (x.astype(dt.float32) * w for x, w in zip(parents.tensors, weights, strict=True))
    result: Tensor = sum(rest, start=first)
    return result


METHOD = Method(
    "linear",
    linear,
    "the weighted mean of the models",
    parameters=(Parameter("normalize", bool, "divide by the sum of the weights", True),),
    own=(Parameter("weight", float, "the model's share", required=True),),
    is_elementwise=True,
)
