"""Operations on elements whose signature differs from the operation table's."""

from __future__ import annotations

from lbrx.errors import DtypeError
from lbrx.tensor.core import Tensor, call
from lbrx.tensor.functions.arguments import as_tensor, as_tensors
from lbrx.tensor.tensor_like import TensorLike
from lbrx.tensor.traced_number import TracedNumber


def clip(
    x: TensorLike,
    /,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
) -> Tensor:
    """x, but at least `min` and at most `max`, which wins where they cross; in the dtype of x.

    Either limit may be left out. Limits broadcast, and are cast to the dtype of x.
    """
    given = as_tensor(x)
    low, high = (_limit(given, limit) for limit in (min, max))
    if low is None and high is None:
        return given
    if low is None:
        return call("minimum", given, high)
    return call("maximum", given, low) if high is None else call("clip", given, low, high)


def _limit(x: Tensor, limit: TensorLike | None) -> TensorLike | None:
    """A number stays one, as it takes the type it meets."""
    if limit is None or isinstance(limit, bool | int):
        return limit
    if isinstance(limit, float | TracedNumber):
        if not x.dtype.is_float:
            raise DtypeError(f"limit {limit} for {x.dtype}: give an integer, or cast x")
        return limit
    return as_tensors(x, limit)[1].astype(x.dtype)


def positive(x: TensorLike, /) -> Tensor:
    """+x: the same elements. Booleans are not numbers."""
    given = as_tensor(x)
    if given.dtype.name == "bool":
        raise DtypeError("positive of bool: cast it to a number")
    return call("copy", given)
