"""Whether tensors are equal, or nearly so."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import tensor
from lbrx.tensors.functions.arguments import as_tensors, without_halves
from lbrx.tensors.tensor_like import TensorLike


def isclose(
    x1: TensorLike,
    x2: TensorLike,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol * |x2| for each pair; infinities are close to themselves,
    and NaN to NaN only with `equal_nan`."""
    a, b = as_tensors(x1, x2)
    common = dt.promote(a.dtype, b.dtype)
    # Booleans are compared as numbers, and unsigned differences must not wrap.
    common = dt.uint8 if common is dt.bool_ else common
    a, b = without_halves(a.astype(common)), without_halves(b.astype(common))
    distance = call("where", a > b, a - b, b - a)
    near = (a == b) | (call("isfinite", b) & (distance <= atol + rtol * call("abs", b)))
    if equal_nan:
        near = near | (call("isnan", a) & call("isnan", b))
    return near


def allclose(
    x1: TensorLike,
    x2: TensorLike,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Tensor:
    """Whether all pairs are close as `isclose` says: a boolean tensor of no axes."""
    return call("all", isclose(x1, x2, rtol, atol, equal_nan=equal_nan))


def array_equal(x1: TensorLike, x2: TensorLike, /, *, equal_nan: bool = False) -> Tensor:
    """Whether both have one shape and equal elements: a boolean tensor of no axes."""
    a, b = as_tensors(x1, x2)
    if a.shape != b.shape:
        return tensor(False, device=a.device)
    same = a == b
    if equal_nan:
        same = same | (call("isnan", a) & call("isnan", b))
    return call("all", same)
