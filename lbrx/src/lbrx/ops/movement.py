"""Operations that move elements or combine them along an axis: concat, pad, take, gather, scatter,
cumsum, cumprod, sort, topk."""

from __future__ import annotations

import operator

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import ShapeError
from lbrx.ops import rules
from lbrx.ops.reduction import widest
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

Widths = tuple[tuple[int, int], ...]

# How `scatter` combines an element with its update; None replaces it.
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
            raise ShapeError(
                f"shapes {shape} and {other} may only differ in axis {axis}: slice one of them"
            )
        total += other[axis]
    return (*shape[:axis], total, *shape[axis + 1 :])


def pad_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, widths = rules.first(shapes), attributes["widths"]
    if len(widths) != len(shape) or any(len(w) != 2 or min(w) < 0 for w in widths):
        raise ShapeError(
            f"widths {widths} do not fit shape {shape}: give (before, after) for each axis"
        )
    return tuple(n + before + after for n, (before, after) in zip(shape, widths, strict=True))


def pad_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    dt.check_scalar(attributes["value"], promoted)
    return promoted


def take_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, indices = rules.first(shapes), rules.first(shapes[1:])
    axis = sh.normalize_axis(attributes["axis"], len(shape))
    if attributes["beyond"] not in ("raise", "zeros"):
        raise ValueError(f"beyond={attributes['beyond']!r} is not known: give 'raise' or 'zeros'")
    return shape[:axis] + indices + shape[axis + 1 :]


def gather_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, indices = rules.first(shapes), rules.first(shapes[1:])
    axis = sh.normalize_axis(attributes["axis"], len(shape))
    if len(indices) != len(shape) or any(
        n != m for i, (n, m) in enumerate(zip(shape, indices, strict=True)) if i != axis
    ):
        raise ShapeError(
            f"indices of shape {indices} may differ from {shape} only in axis {axis}: expand them"
        )
    return indices


def scatter_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    indices = gather_shape(shapes, attributes)
    if shapes[2] != indices:
        raise ShapeError(
            f"updates of shape {shapes[2]} do not have the indices' shape {indices}: expand them"
        )
    if attributes["reduce"] not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        raise ValueError(f"reduce={attributes['reduce']!r} is not known: give one of {known}")
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
    """The tensors joined along an existing axis, in the promoted dtype.

    Their shapes may only differ in that axis; otherwise ShapeError is raised.
    """
    return np.concatenate(tensors, axis=axis)


@op(OpFamily.MOVEMENT, pad_shape, pad_dtype)
def pad(x: NumpyArray, *, widths: Widths, value: float = 0) -> NumpyArray:
    """The tensor with `value` before and after it along each axis.

    widths has one pair (before, after) for each axis, of integers from 0 up. The dtype stays; a
    value that it cannot hold raises DtypeError.

    >>> lbrx.apply("pad", lbrx.tensor([1, 2]), widths=[(1, 2)], value=9).tolist()
    [9, 1, 2, 9, 9]
    """
    result = np.full([n + sum(w) for n, w in zip(x.shape, widths, strict=True)], value, x.dtype)
    inner = zip(x.shape, widths, strict=True)
    result[tuple(slice(before, before + n) for n, (before, _) in inner)] = x
    return result


@op(OpFamily.INDEXING, take_shape, rules.same)
def take(x: NumpyArray, indices: NumpyArray, *, axis: int = 0, beyond: str = "raise") -> NumpyArray:
    """The slices of x at the given indices along an axis; see `lbrx.take`."""
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
    """One element of x for each index along an axis, as numpy.take_along_axis.

    The indices are integers of the shape of x, except along the axis; the result has their shape.
    A negative index counts from the end; one outside the axis raises IndexError.

    >>> lbrx.tensor([[1, 2], [3, 4]]).gather([[1], [0]]).tolist()
    [[2], [3]]
    """
    return np.take_along_axis(x, _checked(indices, x.shape[axis]), axis=axis)


@op(OpFamily.INDEXING, scatter_shape, rules.same)
def scatter(
    x: NumpyArray, indices: NumpyArray, updates: NumpyArray, *, axis: int = -1, reduce: str = "set"
) -> NumpyArray:
    """A copy of x with updates combined into the elements that `gather` would read.

    The indices are integers of the shape of x, except along the axis; updates have their shape.
    reduce is "set", "add", "multiply", "min" or "max". Updates of the same element are applied in
    order, so that "set" keeps the last; float16 and bfloat16 are combined in float32 and rounded
    once. A negative index counts from the end; one outside the axis raises IndexError.

    >>> lbrx.zeros(3).scatter([0, 0], [1.0, 2.0], reduce="add").tolist()
    [3.0, 0.0, 0.0]
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
    """Cumulative sums along an axis.

    The shape stays, and so do floating dtypes; signed integers and bool give int64, unsigned
    integers uint64.

    >>> lbrx.tensor([1, 2, 3]).cumsum().tolist()
    [1, 3, 6]
    """
    return np.asarray(np.cumsum(x, axis=axis, dtype=widest(x)))


@op(OpFamily.SORTING, rules.along_axis, rules.accumulated)
def cumprod(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """Cumulative products along an axis.

    The shape stays, and so do floating dtypes; signed integers and bool give int64, unsigned
    integers uint64.
    """
    return np.asarray(np.cumprod(x, axis=axis, dtype=widest(x)))


def _order(x: NumpyArray, axis: int, descending: bool) -> NumpyArray:
    """Indices of a stable sort with NaN last, ascending or descending."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    if x.dtype.kind == "f":
        return np.argsort(-x, axis=axis, kind="stable")
    # The bitwise complement reverses the order of integers without the overflow of negation.
    return np.argsort(~x, axis=axis, kind="stable")


@op(OpFamily.SORTING, rules.along_axis, rules.same)
def sort(x: NumpyArray, *, axis: int = -1, descending: bool = False) -> NumpyArray:
    """The elements in ascending or descending order along an axis; NaN comes last in both."""
    return np.take_along_axis(x, _order(x, axis, descending), axis=axis)


@op(OpFamily.SORTING, rules.along_axis, rules.index)
def argsort(x: NumpyArray, *, axis: int = -1, descending: bool = False) -> NumpyArray:
    """The int64 indices that sort x along an axis: `x.gather(x.argsort())` is `x.sort()`.

    Equal elements keep their order, also with descending=True; NaN comes last in both orders.
    """
    return _order(x, axis, descending)


@op(OpFamily.SORTING, topk_shape, topk_dtypes)
def topk(
    x: NumpyArray, *, k: int, axis: int = -1, largest: bool = True
) -> tuple[NumpyArray, NumpyArray]:
    """The k largest elements along an axis in descending order, and their int64 indices.

    With largest=False they are the k smallest in ascending order. NaN is chosen last. A k outside
    0 to the size of the axis raises ShapeError.

    >>> values, indices = lbrx.tensor([3.0, 9.0, 5.0]).topk(2)
    >>> values.tolist(), indices.tolist()
    ([9.0, 5.0], [1, 2])
    """
    order = np.take(_order(x, axis, largest), np.arange(k), axis=axis)
    return np.take_along_axis(x, order, axis=axis), order
