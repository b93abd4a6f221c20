"""Reductions over any set of axes. The references accumulate in float64 and round once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Axes, normalize_axes, reduced
from lbrx.ops import rules
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op


def widest(x: NumpyArray) -> Any:
    """The widest dtype of the same kind, in which x is accumulated."""
    return {"f": np.float64, "u": np.uint64}.get(x.dtype.kind, np.int64)


def _total(x: NumpyArray, axis: Axes, keepdims: bool = True) -> NumpyArray:
    axes = normalize_axes(axis, x.ndim)
    return np.asarray(np.sum(x, axis=axes, dtype=widest(x), keepdims=keepdims))


def _count(x: NumpyArray, axis: Axes) -> int:
    return math.prod(x.shape[i] for i in normalize_axes(axis, x.ndim))


def _flattened(x: NumpyArray, axis: Axes) -> NumpyArray:
    """x with the reduced axes merged into one last axis."""
    axes = normalize_axes(axis, x.ndim)
    rest = [i for i in range(x.ndim) if i not in axes]
    shape = [*(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)]
    return x.transpose(*rest, *axes).reshape(shape)


@op(OpFamily.REDUCTION, rules.reduced, rules.accumulated)
def sum_(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The sum over the given axes (all by default); 0 over empty axes.

    axis is an integer, a sequence of them or None; keepdims=True keeps reduced axes with size 1.
    Floating dtypes stay and are accumulated in at least float32; signed integers and bool give
    int64, unsigned integers uint64.

    >>> lbrx.tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
    [4, 6]
    """
    return _total(x, axis, keepdims)


@op(OpFamily.REDUCTION, rules.reduced, rules.accumulated)
def prod(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The product over the given axes (all by default); 1 over empty axes.

    axis is an integer, a sequence of them or None; keepdims=True keeps reduced axes with size 1.
    Floating dtypes stay and are accumulated in at least float32; signed integers and bool give
    int64, unsigned integers uint64.
    """
    axes = normalize_axes(axis, x.ndim)
    return np.asarray(np.prod(x, axis=axes, dtype=widest(x), keepdims=keepdims))


@op(OpFamily.REDUCTION, rules.reduced, rules.floating)
def mean(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The mean over the given axes (all by default); NaN over empty axes.

    axis is an integer, a sequence of them or None; keepdims=True keeps reduced axes with size 1.
    Floating dtypes stay and are accumulated in at least float32; integers and bool give float32.
    """
    return np.asarray(_total(x, axis, keepdims) / np.float64(_count(x, axis)))


@op(OpFamily.REDUCTION, rules.reduced, rules.floating)
def var(
    x: NumpyArray, *, axis: Axes = None, keepdims: bool = False, correction: float = 0
) -> NumpyArray:
    """The variance, sum((x - mean(x))**2) / (n - correction), over the given axes.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. n is the number of reduced elements. Where n - correction is not positive, the
    result is NaN or inf. Integers and bool give float32.

    >>> lbrx.tensor([1.0, 2.0, 3.0]).var(correction=1).item()
    1.0
    """
    centred = x - _total(x, axis) / np.float64(_count(x, axis))
    squares = _total(centred * centred, axis, keepdims)
    return np.asarray(squares / np.float64(max(_count(x, axis) - correction, 0)))


def _norm_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    if not attributes["ord"] > 0:
        raise ValueError(f"ord={attributes['ord']} is not the order of a norm: give one above 0")
    return rules.floating(promoted, attributes)


@op(OpFamily.REDUCTION, rules.reduced, _norm_dtype)
def norm(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> NumpyArray:
    """The vector norm, sum(|x|**ord)**(1 / ord), over the given axes; 0 over empty axes.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. ord=inf gives the largest |x|; an ord that is not above 0 raises ValueError.
    Integers and bool give float32.

    >>> lbrx.tensor([3.0, -4.0]).norm().item()
    5.0
    """
    size = np.abs(x.astype(np.float64))
    if ord == math.inf:
        axes = normalize_axes(axis, x.ndim)
        return np.asarray(np.max(size, axis=axes, keepdims=keepdims, initial=0))
    if ord == 2:
        return np.asarray(np.sqrt(_total(size * size, axis, keepdims)))
    return np.asarray(_total(size**ord, axis, keepdims) ** (1 / ord))


@op(OpFamily.REDUCTION, rules.reduced_nonempty, rules.same)
def max_(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The largest element over the given axes; NaN if one of them is NaN. The dtype stays.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. Empty axes raise ShapeError.
    """
    return np.asarray(np.max(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))


@op(OpFamily.REDUCTION, rules.reduced_nonempty, rules.same)
def min_(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The smallest element over the given axes; NaN if one of them is NaN. The dtype stays.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. Empty axes raise ShapeError.
    """
    return np.asarray(np.min(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))


@op(OpFamily.REDUCTION, rules.reduced_nonempty, rules.index)
def argmax(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The int64 index of the largest element over the given axes, or of the first NaN.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. Over several axes the index counts their elements in row-major order. Of equal
    elements the first is found. Empty axes raise ShapeError.
    """
    shape = reduced(x.shape, axis, keepdims)
    return np.asarray(np.argmax(_flattened(x, axis), axis=-1)).reshape(shape)


@op(OpFamily.REDUCTION, rules.reduced_nonempty, rules.index)
def argmin(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """The int64 index of the smallest element over the given axes, or of the first NaN.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. Over several axes the index counts their elements in row-major order. Of equal
    elements the first is found. Empty axes raise ShapeError.
    """
    shape = reduced(x.shape, axis, keepdims)
    return np.asarray(np.argmin(_flattened(x, axis), axis=-1)).reshape(shape)


@op(OpFamily.REDUCTION, rules.reduced, rules.boolean)
def any_(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """bool: whether an element over the given axes is not zero; False over empty axes.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. NaN is not zero.
    """
    return np.asarray(np.any(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))


@op(OpFamily.REDUCTION, rules.reduced, rules.boolean)
def all_(x: NumpyArray, *, axis: Axes = None, keepdims: bool = False) -> NumpyArray:
    """bool: whether all elements over the given axes are not zero; True over empty axes.

    axis is an integer, a sequence of them or None (all axes); keepdims=True keeps reduced axes
    with size 1. NaN is not zero.
    """
    return np.asarray(np.all(x, axis=normalize_axes(axis, x.ndim), keepdims=keepdims))
