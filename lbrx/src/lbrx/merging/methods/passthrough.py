"""One model's tensors as they are, or multiplied by a number: for stacking layers."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.merging.methods.method import Method, Parameter, Parents
from lbrx.tensors import Tensor


def passthrough(parents: Parents) -> Tensor:
    """x, times `scale` where it is given."""
    (x,), scale = parents.tensors, parents.own[0]["scale"]
    return x if scale is None else x.astype(dt.float32) * scale


METHOD = Method(
    "passthrough",
    passthrough,
    "the tensors of one model",
    own=(Parameter("scale", float, "the number to multiply by"),),
    models=(1, 1),
    is_elementwise=True,
)
