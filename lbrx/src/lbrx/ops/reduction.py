"""Reductions over any set of axes. Floating sums are kept in float64 and rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.dtype import Dtype
from lbrx.ops import rules
from lbrx.ops.table import Attributes, Family, op
from lbrx.shape import Axes, normalize_axes, reduced

Array = NDArray[Any]


def _widest(x: Array) -> Any:
    """The widest type of its kind."""
    return {"f": np.float64, "u": np.uint64}.get(x.dtype.kind, np.int64)


def _total(x: Array, axis: Axes, keepdims: bool = True) -> Array:
    axes = normalize_axes(axis, x.ndim)
    return np.asarray(np.sum(x, axis=axes, dtype=_widest(x), keepdims=keepdims))


def _count(x: Array, axis: Axes) -> int:
    return math.prod(x.shape[i] for i in normalize_axes(axis, x.ndim))


def _flattened(x: Array, axis: Axes) -> Array:
    """The reduced axes as one, at the end."""
    axes = normalize_axes(axis, x.ndim)
    rest = [i for i in range(x.ndim) if i not in axes]
    shape = [*(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)]
    return x.transpose(*rest, *axes).reshape(shape)


@op(Family.REDUCTION, rules.reduced, rules.accumulated)
def sum_(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The sum; of integers in 64 bits."""
    return _total(x, axis, keepdims)


@op(Family.REDUCTION, rules.reduced, rules.accumulated)
def prod(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The product; of integers in 64 bits."""
    axes = normalize_axes(axis, x.ndim)
    return np.asarray(np.prod(x, axis=axes, dtype=_widest(x), keepdims=keepdims))


@op(Family.REDUCTION, rules.reduced, rules.floating)
def mean(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The mean; NaN over nothing."""
    return np.asarray(_total(x, axis, keepdims) / np.float64(_count(x, axis)))


@op(Family.REDUCTION, rules.reduced, rules.floating)
def var(x: Array, *, axis: Axes = None, keepdims: bool = False, correction: float = 0) -> Array:
    """The variance, divided by the number of elements less `correction`."""
    centred = x - _total(x, axis) / np.float64(_count(x, axis))
    squares = _total(centred * centred, axis, keepdims)
    return np.asarray(squares / np.float64(max(_count(x, axis) - correction, 0)))


def _norm_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    if not attributes["ord"] > 0:
        raise ValueError(f"ord={attributes['ord']} makes no norm: give a number above 0")
    return rules.floating(promoted, attributes)


@op(Family.REDUCTION, rules.reduced, _norm_dtype)
def norm(x: Array, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Array:
    """The vector norm: (sum |x|^ord)^(1/ord), or the largest |x| for infinity."""
    size = np.abs(x.astype(np.float64))
    if ord == math.inf:
        axes = normalize_axes(axis, x.ndim)
        return np.asarray(np.max(size, axis=axes, keepdims=keepdims, initial=0))
    if ord == 2:
        return np.asarray(np.sqrt(_total(size * size, axis, keepdims)))
    return np.asarray(_total(size**ord, axis, keepdims) ** (1 / ord))


@op(Family.REDUCTION, rules.reduced_nonempty, rules.same)
def max_(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The largest element; NaN if there is one."""
    return np.asarray(np.max(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))


@op(Family.REDUCTION, rules.reduced_nonempty, rules.same)
def min_(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The smallest element; NaN if there is one."""
    return np.asarray(np.min(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))


@op(Family.REDUCTION, rules.reduced_nonempty, rules.index)
def argmax(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Where the largest is, or the first NaN: its place in the reduced axes, row-major."""
    shape = reduced(x.shape, axis, keepdims)
    return np.asarray(np.argmax(_flattened(x, axis), axis=-1)).reshape(shape)


@op(Family.REDUCTION, rules.reduced_nonempty, rules.index)
def argmin(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Where the smallest is, or the first NaN: its place in the reduced axes, row-major."""
    shape = reduced(x.shape, axis, keepdims)
    return np.asarray(np.argmin(_flattened(x, axis), axis=-1)).reshape(shape)


@op(Family.REDUCTION, rules.reduced, rules.boolean)
def any_(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether an element is not zero."""
    return np.asarray(np.any(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))


@op(Family.REDUCTION, rules.reduced, rules.boolean)
def all_(x: Array, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether no element is zero."""
    return np.asarray(np.all(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))
