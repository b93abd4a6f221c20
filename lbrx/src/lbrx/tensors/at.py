"""Functional item assignment: `x.at[index].set(values)` is a new tensor, and x stays as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.shape import BasicIndex, Shape
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import tensor
from lbrx.tensors.indexing import Selection, selection
from lbrx.tensors.operands import as_scalar
from lbrx.tensors.traced_number import traced_function

_COMBINED = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}
"""The elementwise operation of each update but "set"."""


class At:
    """What `x.at` is: index it, then say what becomes of the elements there."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, key: Any) -> Elements:
        return Elements(self._tensor, key)


@dataclass(frozen=True)
class Elements:
    """Elements of a tensor by a numpy index: integers, slices, None, `...`, masks, integer arrays.

    Values broadcast to the shape of `x[index]` and are cast to the dtype of x. Every method returns
    a new tensor in the shape and dtype of x. An element that is indexed several times is updated
    several times, in order; `set` keeps the last value.

        x.at[2:4, 0].set(1.0)
        counts.at[indices].add(1)
    """

    tensor: Tensor
    key: Any

    def get(self) -> Tensor:
        """The elements: `x[index]`."""
        return self.tensor[self.key]

    def set(self, values: Any) -> Tensor:
        """The tensor with values in place of the elements."""
        return self._updated(values, "set")

    def add(self, values: Any) -> Tensor:
        """The tensor with values added to the elements."""
        return self._updated(values, "add")

    def multiply(self, values: Any) -> Tensor:
        """The tensor with the elements multiplied by values."""
        return self._updated(values, "multiply")

    def min(self, values: Any) -> Tensor:
        """The tensor with the smaller of each element and its value."""
        return self._updated(values, "min")

    def max(self, values: Any) -> Tensor:
        """The tensor with the larger of each element and its value."""
        return self._updated(values, "max")

    def _updated(self, values: Any, reduce: str) -> Tensor:
        x, updates = self.tensor, _as_values(self.tensor, values)
        if _is_mask_of(x, self.key) and math.prod(updates.shape) == 1:
            # Nothing depends on how many elements the mask selects: it is not evaluated.
            scalar = updates.reshape(*[1] * x.ndim)
            return call("where", self.key, _combined(x, scalar, reduce), x)
        if traced_function() is not None and _are_rows_of(x, self.key):
            return _rows_updated(x, self.key, updates, reduce)
        chosen = selection(x, self.key)
        if chosen.pickers:
            region = x.view(sh.index(x.array.layout, chosen.basic))
            updates = _picked_update(region, chosen, updates, reduce)
            reduce = "set"
        return _placed(x, chosen.basic, updates, reduce)


def _as_values(x: Tensor, values: Any) -> Tensor:
    """Values on the device and in the dtype of x."""
    if isinstance(values, Tensor):
        return values.astype(x.dtype)
    number = as_scalar(values)
    if number is None:
        return tensor(values, device=x.device).astype(x.dtype)
    dt.check_scalar(number, x.dtype)
    return tensor(number, x.dtype, x.device)


def _fitted(values: Tensor, shape: Shape) -> Tensor:
    """Values broadcast to a shape; as in numpy, leading axes of size 1 may be too many."""
    while values.ndim > len(shape) and values.shape[0] == 1:
        values = values.squeeze(0)
    return values.expand(*shape)


def _is_mask_of(x: Tensor, key: Any) -> bool:
    return isinstance(key, Tensor) and key.dtype is dt.bool_ and key.shape == x.shape


def _combined(old: Tensor, new: Tensor, reduce: str) -> Tensor:
    if reduce == "set":
        return new
    if old.dtype is dt.bool_ and reduce in ("add", "multiply"):
        return call("logical_or" if reduce == "add" else "logical_and", old, new)
    return call(_COMBINED[reduce], old, new)


# ---- slices and integers ----


def _placed(x: Tensor, key: Sequence[BasicIndex], values: Tensor, reduce: str) -> Tensor:
    """x with the values combined at integers and slices.

    Along each axis, every place looks up the value that lands there; a mask says where one does.
    No element is indexed twice, so this is a composition that fuses.
    """
    region = sh.index(x.array.layout, key)
    values = _fitted(values, region.shape)
    items = [item for item in key if item is not None]
    # The axes of None are of size 1 and those of integers are gone: one axis for each of x's.
    kept = iter([n for n, item in zip(_sizes_of(key, region.shape), key, strict=True) if n >= 0])
    values = values.reshape(*(1 if isinstance(item, int) else next(kept) for item in items))
    inside: Tensor | None = None
    for axis, (size, item) in enumerate(zip(x.shape, items, strict=True)):
        places = _places(item, size)
        if len(places) == size and bool((places == np.arange(size)).all()):
            continue
        if not len(places):
            return x
        source = np.zeros(size, np.int64)
        source[places] = np.arange(len(places))
        hit = np.zeros(size, np.bool_)
        hit[places] = True
        values = call("take", values, source, axis=axis)
        mask = tensor(hit, device=x.device).reshape(
            *(-1 if i == axis else 1 for i in range(x.ndim))
        )
        inside = mask if inside is None else inside & mask
    result = _combined(x, values, reduce)
    return result if inside is None else call("where", inside, result, x)


def _sizes_of(key: Sequence[BasicIndex], region: Shape) -> list[int]:
    """The region's size for each slice of a key; -1 for integers and None."""
    sizes = iter(region)
    lengths = []
    for item in key:
        size = -1 if isinstance(item, int) else next(sizes)
        lengths.append(-1 if item is None else size)
    return lengths


def _places(item: BasicIndex, size: int) -> NDArray[np.int64]:
    assert isinstance(item, int | slice)
    if isinstance(item, int):
        return np.array([item % size])
    return np.arange(*item.indices(size))


# ---- masks and integer arrays ----


def _are_rows_of(x: Tensor, key: Any) -> bool:
    return isinstance(key, Tensor) and key.dtype.is_integer and x.ndim > 0


def _rows_updated(x: Tensor, rows: Tensor, values: Tensor, reduce: str) -> Tensor:
    """x with rows updated whose indices the device reads: they have no values yet while a function
    is traced."""
    size = math.prod(x.shape[1:])
    updates = _fitted(values, (*rows.shape, *x.shape[1:])).reshape(math.prod(rows.shape), size)
    places = rows.reshape(-1, 1).expand(*updates.shape)
    source = x.reshape(x.shape[0], size)
    return call("scatter", source, places, updates, axis=0, reduce=reduce).reshape(*x.shape)


def _picked_update(region: Tensor, chosen: Selection, values: Tensor, reduce: str) -> Tensor:
    """The region with picked elements updated, by a scatter along the picked axes as one."""
    picked, rest = chosen.axes(region.ndim)
    sizes = [region.shape[axis] for axis in picked]
    remaining = [region.shape[axis] for axis in rest]
    flat = chosen.flat(sizes)
    count = math.prod(flat.shape)
    order = chosen.result_order(len(flat.shape), len(rest))
    shape = [*flat.shape, *remaining]
    # Values are in the order of x[index]; back to picked axes first.
    updates = _fitted(values, tuple(shape[axis] for axis in order))
    updates = updates.permute(*np.argsort(order).tolist()).reshape(count, math.prod(remaining))
    rows = region.permute(*picked, *rest).reshape(math.prod(sizes), math.prod(remaining))
    indices = tensor(flat.reshape(-1, 1), device=region.device).expand(*updates.shape)
    updated = call("scatter", rows, indices, updates, axis=0, reduce=reduce)
    back = np.argsort([*picked, *rest]).tolist()
    return updated.reshape(*sizes, *remaining).permute(*back)
