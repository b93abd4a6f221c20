"""Deviations, quantiles, counts, differences, and the standard's cumulative functions."""

from __future__ import annotations

import math

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.arrays.shape import Axes, normalize_axes, normalize_axis
from lbrx.errors import DtypeError, ShapeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import concat, tensor, zeros
from lbrx.tensors.functions.arguments import as_tensor, floating, without_halves
from lbrx.tensors.operands import as_scalar
from lbrx.tensors.tensor_like import TensorLike


def std(
    x: TensorLike, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The standard deviation, with the number of elements less `correction` as divisor."""
    operand = as_tensor(x)
    wide = without_halves(operand)
    variance = call("var", wide, axis=axis, correction=correction, keepdims=keepdims)
    return call("sqrt", variance).astype(floating(operand.dtype))


def logsumexp(x: TensorLike, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; halves are rounded once."""
    operand = as_tensor(x)
    operand = operand.astype(floating(operand.dtype))
    wide = without_halves(operand)
    axes = normalize_axes(axis, operand.ndim)
    if any(operand.shape[i] == 0 for i in axes):
        return call("log", call("sum", call("exp", operand), axis=axes, keepdims=keepdims))
    largest = call("max", wide, axis=axes, keepdims=True)
    # An infinite maximum stays infinite without being subtracted from itself.
    shift = call("where", call("isfinite", largest), largest, 0)
    total = call("sum", call("exp", wide - shift), axis=axes, keepdims=keepdims)
    back = shift if keepdims else shift.squeeze(axes)
    return (call("log", total) + back).astype(operand.dtype)


def count_nonzero(x: TensorLike, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements are not zero, as int64."""
    return call("sum", as_tensor(x) != 0, axis=axis, keepdims=keepdims)


def sum(
    x: TensorLike, /, axis: Axes = None, *, dtype: DtypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """The sum over axes, or over all of them; of integers in 64 bits.

    With a dtype, x is cast to it first, and the sum has it.
    """
    return _total("sum", x, axis, dtype, keepdims)


def prod(
    x: TensorLike, /, axis: Axes = None, *, dtype: DtypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """The product over axes, or over all of them; of integers in 64 bits.

    With a dtype, x is cast to it first, and the product has it.
    """
    return _total("prod", x, axis, dtype, keepdims)


def _total(name: str, x: TensorLike, axis: Axes, dtype: DtypeLike | None, keepdims: bool) -> Tensor:
    if dtype is None:
        return call(name, x, axis=axis, keepdims=keepdims)
    return call(name, as_tensor(x).astype(dtype), axis=axis, keepdims=keepdims).astype(dtype)


# ---- quantiles ----


def median(x: TensorLike, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The middle of the sorted elements, the mean of the middle two of an even number."""
    return quantile(x, 0.5, axis=axis, keepdims=keepdims)


def percentile(
    x: TensorLike,
    q: TensorLike,
    axis: Axes = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
) -> Tensor:
    """`quantile` of q / 100: q is a number from 0 to 100, or several."""
    percents = np.asarray(q, np.float64)
    if not ((percents >= 0) & (percents <= 100)).all():
        raise ValueError(f"q={percents.tolist()} is not a percentage: give numbers from 0 to 100")
    shares = percents / 100
    return quantile(x, shares, axis, method=method, keepdims=keepdims)


_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def quantile(
    x: TensorLike,
    q: TensorLike,
    axis: Axes = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
) -> Tensor:
    """The elements at shares q (0 to 1) of the sorted elements over axes; NaN if one is NaN.

    Between two elements `method` decides: "linear" interpolates, "lower", "higher" and "nearest"
    take one, "midpoint" the mean. The axes of q come first in the result, which is floating (of
    halves in their own type). The values of q are needed at once: a tensor is evaluated.
    """
    operand = as_tensor(x)
    shares = np.asarray(q, np.float64)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"q={shares.tolist()} is not a share: give numbers from 0 to 1")
    if method not in _METHODS:
        raise ValueError(f"method={method!r}: give one of {', '.join(map(repr, _METHODS))}")
    axes = normalize_axes(axis, operand.ndim)
    rest = [i for i in range(operand.ndim) if i not in axes]
    kept = [operand.shape[i] for i in rest]
    result_type = floating(operand.dtype)
    length = math.prod(operand.shape[i] for i in axes)
    rows = operand.permute(*rest, *axes).reshape(*kept, length).astype(result_type)
    rows = without_halves(rows)
    if length == 0:
        raise ShapeError(f"quantile over empty axes {axes} of shape {operand.shape}: give elements")
    quantiles = _interpolated(call("sort", rows, axis=-1), shares.reshape(-1), method)
    spoiled = call("any", call("isnan", rows), axis=-1, keepdims=True)
    quantiles = call("where", spoiled, float("nan"), quantiles).astype(result_type)
    front = quantiles.permute(quantiles.ndim - 1, *range(quantiles.ndim - 1))
    shape = [1 if i in axes else n for i, n in enumerate(operand.shape)] if keepdims else kept
    return front.reshape(*shares.shape, *shape)


def _interpolated(ordered: Tensor, shares: np.ndarray, method: str) -> Tensor:
    """Elements of sorted rows at each share of the way, along a new last axis."""
    places = shares * (ordered.shape[-1] - 1)
    if method == "nearest":
        places = np.rint(places)
    low, high = np.floor(places).astype(np.int64), np.ceil(places).astype(np.int64)
    if method in ("lower", "nearest"):
        return call("take", ordered, low, axis=-1)
    after = call("take", ordered, high, axis=-1)
    if method == "higher":
        return after
    before = call("take", ordered, low, axis=-1)
    part = np.where(places > low, 0.5, 0.0) if method == "midpoint" else places - low
    weight = tensor(part, ordered.dtype, ordered.device)
    # Beside infinity the difference is not a number, but an exact place needs none.
    return call("where", weight == 0, before, before + (after - before) * weight)


# ---- along an axis ----


def diff(
    x: TensorLike,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor:
    """Differences of neighbours along an axis, n times; of booleans, whether they differ."""
    operand = as_tensor(x)
    place = normalize_axis(axis, operand.ndim)
    if n < 0:
        raise ShapeError(f"diff n={n} times: give 0 or more")
    parts = [_slab(prepend, operand, place), operand, _slab(append, operand, place)]
    present = [part for part in parts if part is not None]
    operand = concat(present, axis=place) if len(present) > 1 else operand
    before = (*[slice(None)] * place, slice(None, -1))
    after = (*[slice(None)] * place, slice(1, None))
    for _ in range(n):
        name = "not_equal" if operand.dtype is dt.bool_ else "subtract"
        operand = call(name, operand[after], operand[before])
    return operand


def _slab(value: TensorLike | None, x: Tensor, axis: int) -> Tensor | None:
    """What is put before or after x along an axis; a scalar is one element thick."""
    if value is None:
        return None
    number = as_scalar(value)
    if number is None:
        slab = as_tensor(value, x.device)
    else:
        slab = tensor(number, dt.result_type(x.dtype, number), x.device)
    return (
        slab if slab.ndim else slab.expand(*(1 if i == axis else n for i, n in enumerate(x.shape)))
    )


def cumulative_sum(
    x: TensorLike,
    /,
    *,
    axis: int | None = None,
    dtype: DtypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Running sums along an axis, which may be left out of a vector; of integers in 64 bits.

    With `include_initial` the result begins with 0 and is one element longer.
    """
    return _running("cumsum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: TensorLike,
    /,
    *,
    axis: int | None = None,
    dtype: DtypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Running products along an axis, which may be left out of a vector; of integers in 64 bits.

    With `include_initial` the result begins with 1 and is one element longer.
    """
    return _running("cumprod", x, axis, dtype, include_initial)


def cumsum(x: TensorLike, /, axis: int | None = None, *, dtype: DtypeLike | None = None) -> Tensor:
    """Running sums along an axis, or of the flattened elements; of integers in 64 bits."""
    return _flat_running("cumsum", x, axis, dtype)


def cumprod(x: TensorLike, /, axis: int | None = None, *, dtype: DtypeLike | None = None) -> Tensor:
    """Running products along an axis, or of the flattened elements; of integers in 64 bits."""
    return _flat_running("cumprod", x, axis, dtype)


def _flat_running(name: str, x: TensorLike, axis: int | None, dtype: DtypeLike | None) -> Tensor:
    operand = as_tensor(x)
    if axis is None:
        operand, axis = operand.reshape(-1), 0
    return _running(name, operand, axis, dtype, initial=False)


def _running(
    name: str, x: TensorLike, axis: int | None, dtype: DtypeLike | None, initial: bool
) -> Tensor:
    operand = as_tensor(x)
    if axis is None and operand.ndim != 1:
        raise ShapeError(f"{name} of shape {operand.shape}: give the axis")
    place = normalize_axis(0 if axis is None else axis, operand.ndim)
    result = call(name, operand if dtype is None else operand.astype(dtype), axis=place)
    if dtype is not None:
        result = result.astype(dtype)
    if not initial:
        return result
    widths = tuple((int(i == place), 0) for i in range(operand.ndim))
    return call("pad", result, widths=widths, value=int(name == "cumprod"))


def bincount(x: TensorLike, /, weights: TensorLike | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on occurs in a vector of integers, or the sum of its weights.

    The result is as long as the largest number needs, so x is evaluated.
    """
    operand = as_tensor(x)
    if operand.ndim != 1:
        raise ShapeError(f"bincount of shape {operand.shape}: give a vector")
    if not operand.dtype.is_integer:
        raise DtypeError(f"bincount of {operand.dtype}: give integers")
    values = operand.numpy()
    if values.size and values.min() < 0:
        raise ValueError(f"bincount of {values.min()}: give numbers from 0 on")
    length = max(int(values.max()) + 1 if values.size else 0, minlength)
    if weights is None:
        counts = np.bincount(values.astype(np.int64), minlength=length)
        return tensor(counts.astype(np.int64), device=operand.device)
    added = as_tensor(weights, operand.device)
    if added.shape != operand.shape:
        raise ShapeError(f"weights of shape {added.shape}: give one each, {operand.shape}")
    added = added.astype(floating(added.dtype))
    start = zeros(length, added.dtype, operand.device)
    return call("scatter", start, operand, added, axis=0, reduce="add")
