"""Operations on elements whose signature differs from the operation table's."""

from __future__ import annotations

import math
import operator

from lbrx.arrays import dtype as dt
from lbrx.errors import DtypeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.data_types import finfo, iinfo
from lbrx.tensors.functions.arguments import as_tensor, as_tensors, without_halves
from lbrx.tensors.tensor_like import TensorLike
from lbrx.tensors.traced_number import TracedNumber


def clip(
    x: TensorLike,
    /,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
) -> Tensor:
    """x, but at least `min` and at most `max`, which wins where they cross; in the dtype of x.

    Either limit may be left out. Limits broadcast, and are cast to the dtype of x.
    """
    operand = as_tensor(x)
    low, high = (_limit(operand, limit) for limit in (min, max))
    if low is None and high is None:
        return operand
    if low is None:
        return call("minimum", operand, high)
    return call("maximum", operand, low) if high is None else call("clip", operand, low, high)


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
    operand = as_tensor(x)
    if operand.dtype.name == "bool":
        raise DtypeError("positive of bool: cast it to a number")
    return call("copy", operand)


def round(x: TensorLike, /, decimals: int = 0) -> Tensor:
    """x rounded to so many decimals, in its dtype; ties go to the even neighbour.

    A negative number of decimals rounds to tens, hundreds and so on, also integers. As in numpy,
    x is scaled by a power of ten and rounded to an integer, so the last bit may differ from the
    decimal notation of x; float16 and bfloat16 are rounded once more at the end.

    >>> lbrx.round(lbrx.tensor([0.125, -1.5]), 2).tolist(), lbrx.round([150, 149], -2).tolist()
    ([0.11999999731779099, -1.5], [200, 100])
    """
    operand, places = as_tensor(x), operator.index(decimals)
    if places == 0 or (places > 0 and not operand.dtype.is_float):
        return call("round", operand)
    if not operand.dtype.is_float:
        return _round_integers(operand, 10**-places)
    wide, power = without_halves(operand), 10.0 ** abs(places)
    if places > 0:
        return (call("round", wide * power) / power).astype(operand.dtype)
    return (call("round", wide / power) * power).astype(operand.dtype)


def _round_integers(x: Tensor, power: int) -> Tensor:
    """Integers rounded to multiples of a power of ten, in integer arithmetic."""
    if x.dtype is dt.bool_ or power > iinfo(x.dtype).max:
        return x * 0
    multiple, rest = x // power, x % power
    up = (rest > power - rest) | ((rest == power - rest) & (multiple % 2 != 0))
    return (multiple + up.astype(x.dtype)) * power


def nan_to_num(
    x: TensorLike, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with numbers in place of NaN and the infinities, in its dtype.

    Without `posinf` and `neginf`, infinities become the largest and the smallest finite number of
    the dtype. Integers and booleans do not change.

    >>> lbrx.nan_to_num(lbrx.tensor([lbrx.nan, 1.0, lbrx.inf]), posinf=9.0).tolist()
    [0.0, 1.0, 9.0]
    """
    operand = as_tensor(x)
    if not operand.dtype.is_float:
        return operand
    limits = finfo(operand.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    numbers = call("where", call("isnan", operand), nan, operand)
    numbers = call("where", operand == math.inf, high, numbers)
    return call("where", operand == -math.inf, low, numbers)
