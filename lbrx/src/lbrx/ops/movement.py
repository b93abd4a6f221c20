"""Operations that move elements: concat, pad, take, gather, scatter, cumsum, sort, topk."""

from __future__ import annotations

import operator

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.errors import ShapeError
from lbrx.ops import rules
from lbrx.ops.reduction import widest
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op
from lbrx.shape import Shape

Widths = tuple[tuple[int, int], ...]

# What `scatter` does with an element and its update; None puts the update in its place.
REDUCTIONS: dict[str, np.ufunc | None] = {
    "set": None,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def concat_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape = rules.first(shapes)
    axis = sh.normalize_axis(attributes["axis"], len(shape))
    total = 0
    for other in shapes:
        assert other is not None
        if len(other) != len(shape) or other[:axis] + other[axis + 1 :] != (
            shape[:axis] + shape[axis + 1 :]
        ):
            raise ShapeError(f"shapes {shape} and {other} may differ in axis {axis} only")
        total += other[axis]
    return (*shape[:axis], total, *shape[axis + 1 :])


def pad_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, widths = rules.first(shapes), attributes["widths"]
    if len(widths) != len(shape) or any(len(w) != 2 or min(w) < 0 for w in widths):
        raise ShapeError(f"widths {widths} do not fit shape {shape}: give (before, after) an axis")
    return tuple(n + before + after for n, (before, after) in zip(shape, widths, strict=True))


def pad_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    dt.check_scalar(attributes["value"], promoted)
    return promoted


def take_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, indices = rules.first(shapes), rules.first(shapes[1:])
    axis = sh.normalize_axis(attributes["axis"], len(shape))
    if attributes["beyond"] not in ("raise", "zeros"):
        raise ValueError(f"beyond={attributes['beyond']!r} is neither 'raise' nor 'zeros'")
    return shape[:axis] + indices + shape[axis + 1 :]


def gather_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, indices = rules.first(shapes), rules.first(shapes[1:])
    axis = sh.normalize_axis(attributes["axis"], len(shape))
    if len(indices) != len(shape) or any(
        n != m for i, (n, m) in enumerate(zip(shape, indices, strict=True)) if i != axis
    ):
        raise ShapeError(f"indices of shape {indices} may differ from {shape} in axis {axis} only")
    return indices


def scatter_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    indices = gather_shape(shapes, attributes)
    if shapes[2] != indices:
        raise ShapeError(f"updates of shape {shapes[2]} must have the indices' shape {indices}")
    if attributes["reduce"] not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        raise ValueError(f"reduce={attributes['reduce']!r} does not exist: give one of {known}")
    return rules.first(shapes)


def topk_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, k = rules.first(shapes), operator.index(attributes["k"])
    axis = sh.normalize_axis(attributes["axis"], len(shape))
    if not 0 <= k <= shape[axis]:
        raise ShapeError(f"k={k} of axis {axis} in shape {shape}: give 0 to {shape[axis]}")
    return (*shape[:axis], k, *shape[axis + 1 :])


def topk_dtypes(promoted: Dtype, _: Attributes) -> tuple[Dtype, Dtype]:
    return promoted, dt.int64


def _checked(indices: NumpyArray, size: int) -> NumpyArray:
    wrong = (indices < -size) | (indices >= size)
    if wrong.any():
        raise IndexError(f"index {indices[wrong][0]} is beyond an axis of {size} elements")
    return np.asarray(np.where(indices < 0, indices + size, indices), np.intp)


@op(OpFamily.MOVEMENT, concat_shape, rules.same)
def concat(*tensors: NumpyArray, axis: int = 0) -> NumpyArray:
    """Tensors one after the other along an axis."""
    return np.concatenate(tensors, axis=axis)


@op(OpFamily.MOVEMENT, pad_shape, pad_dtype)
def pad(x: NumpyArray, *, widths: Widths, value: float = 0) -> NumpyArray:
    """The tensor with `value` around it: (before, after) for each axis."""
    result = np.full([n + sum(w) for n, w in zip(x.shape, widths, strict=True)], value, x.dtype)
    inner = zip(x.shape, widths, strict=True)
    result[tuple(slice(before, before + n) for n, (before, _) in inner)] = x
    return result


@op(OpFamily.INDEXING, take_shape, rules.same)
def take(x: NumpyArray, indices: NumpyArray, *, axis: int = 0, beyond: str = "raise") -> NumpyArray:
    """Whole slices along an axis, as numpy.take; an embedding is take over axis 0.

    An index beyond the axis raises; with beyond="zeros" it gives zeros, and nothing has to wait
    for the indices to be looked at.
    """
    size = x.shape[axis]
    if beyond == "raise" or size == 0:
        return np.asarray(np.take(x, _checked(indices, size), axis=axis))
    inside = (indices >= -size) & (indices < size)
    taken = np.take(x, _checked(np.where(inside, indices, 0), size), axis=axis)
    first = axis % x.ndim
    over = inside.reshape(*inside.shape, *[1] * (x.ndim - first - 1))
    return np.where(over, taken, x.dtype.type(0))


@op(OpFamily.INDEXING, gather_shape, rules.same)
def gather(x: NumpyArray, indices: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """One element for each index, as numpy.take_along_axis."""
    return np.take_along_axis(x, _checked(indices, x.shape[axis]), axis=axis)


@op(OpFamily.INDEXING, scatter_shape, rules.same)
def scatter(
    x: NumpyArray, indices: NumpyArray, updates: NumpyArray, *, axis: int = -1, reduce: str = "set"
) -> NumpyArray:
    """A copy of x with updates where gather would read: set, or combined with the elements there.

    `reduce` is "set", "add", "multiply", "min" or "max". Updates of one element follow in order, so
    the last one is set; halves are combined in float32 and rounded once.
    """
    result = x.copy()
    places: list[NumpyArray] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _checked(indices, x.shape[axis])
    combine = REDUCTIONS[reduce]
    if combine is None:
        result[tuple(places)] = updates
    else:
        combine.at(result, tuple(places), updates)
    return result


@op(OpFamily.SORTING, rules.along_axis, rules.accumulated)
def cumsum(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """Running sums along an axis; of integers in 64 bits."""
    return np.asarray(np.cumsum(x, axis=axis, dtype=widest(x)))


@op(OpFamily.SORTING, rules.along_axis, rules.accumulated)
def cumprod(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """Running products along an axis; of integers in 64 bits."""
    return np.asarray(np.cumprod(x, axis=axis, dtype=widest(x)))


def _order(x: NumpyArray, axis: int, descending: bool) -> NumpyArray:
    """A stable order with NaN last, in both directions."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    if x.dtype.kind == "f":
        return np.argsort(-x, axis=axis, kind="stable")
    # The complement reverses integers, and unlike the negative it does not overflow.
    return np.argsort(~x, axis=axis, kind="stable")


@op(OpFamily.SORTING, rules.along_axis, rules.same)
def sort(x: NumpyArray, *, axis: int = -1, descending: bool = False) -> NumpyArray:
    """The elements in order along an axis; NaN last."""
    return np.take_along_axis(x, _order(x, axis, descending), axis=axis)


@op(OpFamily.SORTING, rules.along_axis, rules.index)
def argsort(x: NumpyArray, *, axis: int = -1, descending: bool = False) -> NumpyArray:
    """Where the elements of sort come from; equal ones keep their order."""
    return _order(x, axis, descending)


@op(OpFamily.SORTING, topk_shape, topk_dtypes)
def topk(
    x: NumpyArray, *, k: int, axis: int = -1, largest: bool = True
) -> tuple[NumpyArray, NumpyArray]:
    """The k largest (or smallest) in order, and where they are; NaN counts as the last choice."""
    order = np.take(_order(x, axis, largest), np.arange(k), axis=axis)
    return np.take_along_axis(x, order, axis=axis), order
