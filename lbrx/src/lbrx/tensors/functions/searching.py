"""Where elements are, and which there are."""

from __future__ import annotations

from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import normalize_axis
from lbrx.errors import ShapeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import stack, tensor, zeros
from lbrx.tensors.functions.arguments import as_tensor, as_tensors
from lbrx.tensors.tensor_like import TensorLike

# ---- places ----


def nonzero(x: TensorLike, /) -> tuple[Tensor, ...]:
    """For each axis, the int64 indices of the elements that are not zero, in row-major order.

    The result's shape depends on the values, so x is evaluated and searched on the host.
    """
    operand = as_tensor(x)
    if operand.ndim == 0:
        raise ShapeError("nonzero of a scalar: reshape it to (1,)")
    return tuple(tensor(places, dt.int64, operand.device) for places in np.nonzero(operand.numpy()))


def sort(
    x: TensorLike, /, axis: int = -1, descending: bool = False, *, stable: bool = True
) -> Tensor:
    """The elements in ascending or descending order along an axis; NaN comes last in both.

    Sorting is always stable.
    """
    return call("sort", x, axis=axis, descending=descending)


def argsort(
    x: TensorLike, /, axis: int = -1, descending: bool = False, *, stable: bool = True
) -> Tensor:
    """The int64 indices that sort x along an axis: `x.gather(x.argsort())` is `x.sort()`.

    Sorting is always stable: equal elements keep their order, also with descending=True. NaN comes
    last in both orders.
    """
    return call("argsort", x, axis=axis, descending=descending)


def argwhere(x: TensorLike, /) -> Tensor:
    """The indices of the elements that are not zero: a row for each, a column for each axis.

    The result's shape depends on the values, so x is evaluated and searched on the host.
    """
    operand = as_tensor(x)
    if operand.ndim == 0:
        return zeros((int(bool(operand)), 0), dt.int64, operand.device)
    return stack(nonzero(operand), axis=1)


def take(
    x: TensorLike, /, indices: TensorLike, axis: int | None = 0, beyond: str = "raise"
) -> Tensor:
    """The slices of x at the given indices along an axis, or elements of the flattened x.

    The indices are integers of any shape, which takes the axis's place: (3, 4) with indices of
    shape (2, 5) along axis 0 gives (2, 5, 4), and along axis=None (2, 5). A negative index counts
    from the end. An index outside the axis raises IndexError; with beyond="zeros" it gives zeros,
    and the host does not wait for the indices to be computed.

    >>> lbrx.tensor([10, 20, 30]).take([2, -3]).tolist()
    [30, 10]
    """
    operand = as_tensor(x)
    if axis is None:
        operand, axis = operand.reshape(-1), 0
    return call("take", operand, indices, axis=axis, beyond=beyond)


def take_along_axis(x: TensorLike, indices: TensorLike, /, axis: int = -1) -> Tensor:
    """One element along an axis for each index; the other axes of both broadcast."""
    operand, places = as_tensors(x, indices)
    if operand.ndim != places.ndim:
        raise ShapeError(f"indices of shape {places.shape} for {operand.shape}: give as many axes")
    at = normalize_axis(axis, operand.ndim)

    def widened(one: Tensor, other: Tensor) -> Tensor:
        sizes = [
            n if i == at else sh.broadcast((n,), (m,))[0]
            for i, (n, m) in enumerate(zip(one.shape, other.shape, strict=True))
        ]
        return one.expand(*sizes)

    return call("gather", widened(operand, places), widened(places, operand), axis=at)


def searchsorted(
    x1: TensorLike, x2: TensorLike, /, *, side: str = "left", sorter: TensorLike | None = None
) -> Tensor:
    """Where each x2 would be put into the sorted vector x1: before equal elements, or after them
    with side="right". The result has the shape of x2 and is int64.

    `sorter` are indices that sort x1. NaN counts as larger than all numbers.
    """
    if side not in ("left", "right"):
        raise ValueError(f"side={side!r}: give 'left' or 'right'")
    ordered, values = as_tensors(x1, x2)
    if ordered.ndim != 1:
        raise ShapeError(f"searchsorted in shape {ordered.shape}: give a sorted vector")
    if sorter is not None:
        ordered = call("take", ordered, as_tensor(sorter, ordered.device), axis=0)
    count = ordered.shape[0]
    place = zeros(values.shape, dt.int64, values.device)
    # A binary search with the same steps for all: each bit of the place is kept if still before.
    for bit in reversed(range(count.bit_length())):
        probe = place + (1 << bit)
        element = call("take", ordered, call("minimum", probe, count) - 1, axis=0)
        place = call("where", (probe <= count) & _precedes(element, values, side), probe, place)
    return place


def _precedes(element: Tensor, value: Tensor, side: str) -> Tensor:
    """Whether an element comes before the place of a value."""
    before = element < value if side == "left" else element <= value
    if not value.dtype.is_float:
        return before
    unordered = call("isnan", value)
    return before | (unordered if side == "right" else unordered & (element == element))


def isin(x1: TensorLike, x2: TensorLike, /, *, invert: bool = False) -> Tensor:
    """Whether each element of x1 is equal to one of x2, or to none with `invert`."""
    values, wanted = as_tensors(x1, x2)
    common = dt.promote(values.dtype, wanted.dtype)
    values, wanted = values.astype(common), wanted.astype(common)
    if wanted.size == 0:
        is_there = call("not_equal", values, values) & False
    else:
        ordered = call("sort", wanted.reshape(-1))
        place = call("minimum", searchsorted(ordered, values), wanted.size - 1)
        is_there = call("take", ordered, place, axis=0) == values
    return call("logical_not", is_there) if invert else is_there


# ---- distinct values ----


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Tensor
    inverse_indices: Tensor


def unique_values(x: TensorLike, /) -> Tensor:
    """The distinct elements, sorted, as a vector; each NaN counts as distinct.

    The result's shape depends on the values, so x is evaluated and searched on the host.
    """
    operand = as_tensor(x)
    values = np.unique(_sortable(operand), equal_nan=False)
    return _returned(values, operand.dtype, operand)


def unique_counts(x: TensorLike, /) -> UniqueCounts:
    """`unique_values`, and how often each occurs."""
    unique = unique_all(x)
    return UniqueCounts(unique.values, unique.counts)


def unique_inverse(x: TensorLike, /) -> UniqueInverse:
    """`unique_values`, and for each element of x the place of its value among them."""
    unique = unique_all(x)
    return UniqueInverse(unique.values, unique.inverse_indices)


def unique_all(x: TensorLike, /) -> UniqueAll:
    """`unique_values`, the first place of each in the flattened x, for each element of x the place
    of its value among them, and how often each occurs."""
    operand = as_tensor(x)
    values, indices, inverse, counts = np.unique(
        _sortable(operand),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        equal_nan=False,
    )
    return UniqueAll(
        _returned(values, operand.dtype, operand),
        _returned(indices, dt.int64, operand),
        _returned(inverse.reshape(operand.shape), dt.int64, operand),
        _returned(counts, dt.int64, operand),
    )


@overload
def unique(x: TensorLike) -> Tensor: ...
@overload
def unique(
    x: TensorLike, return_index: bool = ..., return_inverse: bool = ..., return_counts: bool = ...
) -> Any: ...


def unique(
    x: TensorLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The distinct values of x, sorted, as numpy's function of this name gives them.

    With return_index, return_inverse or return_counts a tuple: the values, then those of the
    `indices`, `inverse_indices` and `counts` of `unique_all` that are asked for. Every NaN is
    distinct. The values of a device are read by the host.

    >>> values, counts = lbrx.unique([3, 1, 3], return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    if not (return_index or return_inverse or return_counts):
        return unique_values(x)
    values, indices, inverse, counts = unique_all(x)
    parts = ((return_index, indices), (return_inverse, inverse), (return_counts, counts))
    return values, *(part for wanted, part in parts if wanted)


def _sortable(x: Tensor) -> NDArray[np.generic]:
    """The values in a type that numpy sorts."""
    values = x.numpy()
    return values.astype(np.float32) if x.dtype is dt.bfloat16 else values


def _returned(values: NDArray[np.generic], dtype: Dtype, like: Tensor) -> Tensor:
    return tensor(values, dtype, like.device)
