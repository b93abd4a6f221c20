"""Tensor indexing with numpy's rules: integers and slices give views, masks and integer arrays
give copies of the selected elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import BasicIndex
from lbrx.errors import DtypeError, ShapeError
from lbrx.tensors.traced_number import traced_function

if TYPE_CHECKING:
    from lbrx.tensors.core import Tensor

Picker = NDArray[Any]
"""Integer indices along one axis."""


@dataclass(frozen=True)
class Selection:
    """A key in two steps: basic indexing, which gives a view, then index arrays on its axes."""

    basic: list[BasicIndex]
    """An item for each axis of the tensor, and None for each new axis."""
    pickers: dict[int, Picker]
    """Index arrays by axis of the view. They are not negative, and they broadcast."""

    def axes(self, ndim: int) -> tuple[list[int], list[int]]:
        """The axes of the view that have index arrays, and the others."""
        return sorted(self.pickers), [axis for axis in range(ndim) if axis not in self.pickers]

    def flat(self, sizes: Sequence[int]) -> Picker:
        """The index arrays as one, into the indexed axes merged into one; `sizes` are theirs."""
        shape = sh.broadcast(*(picker.shape for picker in self.pickers.values()))
        places = np.zeros(shape, np.int64)
        for axis, size in zip(sorted(self.pickers), sizes, strict=True):
            places = places * size + self.pickers[axis]
        return places

    def result_order(self, front: int, rest: int) -> list[int]:
        """The permutation of a result that has the `front` axes of the index arrays first.

        As in numpy, these take the place of the indexed axes, or stay first if a slice lies between
        the indexed axes.
        """
        picked = sorted(self.pickers)
        adjacent = picked == list(range(picked[0], picked[-1] + 1))
        before = picked[0] if adjacent else 0
        back = range(front, front + rest)
        return [*back[:before], *range(front), *back[before:]]


def index(tensor: Tensor, key: Any) -> Tensor:
    """tensor[key]: a view for slices and integers, else a copy of the selected elements."""
    if traced_function() is not None and (taken := _taken(tensor, key)) is not None:
        return taken
    items = _items(key)
    if not any(isinstance(item, np.ndarray) for item in items):
        return tensor.view(sh.index(tensor.array.layout, items))
    chosen = _selection(tensor, items)
    view = tensor.view(sh.index(tensor.array.layout, chosen.basic))
    picked, rest = chosen.axes(view.ndim)
    sizes, remaining = ([view.shape[axis] for axis in axes] for axes in (picked, rest))
    flat = chosen.flat(sizes)
    source = view.permute(*picked, *rest).reshape(math.prod(sizes), *remaining)
    found: Tensor = source.take(flat, axis=0)
    return found.permute(*chosen.result_order(flat.ndim, len(rest)))


def _taken(tensor: Tensor, key: Any) -> Tensor | None:
    """tensor[key] where one item is a tensor of integers and the others are slices, None or `...`:
    the device reads the indices, which have no values yet while a function is traced."""
    items = list(key) if isinstance(key, tuple) else [key]
    places = [i for i, item in enumerate(items) if hasattr(item, "array")]
    others = [item for i, item in enumerate(items) if i not in places]
    plain = all(item is None or item is Ellipsis or isinstance(item, slice) for item in others)
    if len(places) != 1 or not plain or not items[places[0]].dtype.is_integer:
        return None
    indices, items[places[0]] = items[places[0]], slice(None)
    written: list[Any] = sh.expand_ellipsis(items, tensor.ndim, len(items) - _new_axes(items))
    at = places[0] if Ellipsis not in items[: places[0]] else places[0] + len(written) - len(items)
    taken: Tensor = tensor.view(sh.index(tensor.array.layout, written)).take(indices, axis=at)
    return taken


def _new_axes(items: Sequence[Any]) -> int:
    return sum(item is None or item is Ellipsis for item in items)


def selection(tensor: Tensor, key: Any) -> Selection:
    """The key expanded to all axes of the tensor. Masks and index arrays are read by the host."""
    return _selection(tensor, _items(key))


def _selection(tensor: Tensor, items: Sequence[Any]) -> Selection:
    used = sum(_width(item) for item in items)
    written: list[Any] = sh.expand_ellipsis(items, tensor.ndim, used)
    if not any(isinstance(item, np.ndarray) for item in items):
        return Selection(written, {})
    basic: list[BasicIndex] = []
    pickers: dict[int, Picker] = {}
    shape = iter(tensor.shape)
    axis = 0
    for item in written:
        sizes = [next(shape) for _ in range(_width(item))]
        if isinstance(item, slice) or item is None:
            basic.append(item)
            axis += 1
            continue
        # As in numpy, an integer among index arrays is an array of one element.
        for picker, size in zip(_pickers(np.asarray(item), sizes), sizes or (1,), strict=True):
            pickers[axis] = _within(picker, size)
            basic.append(slice(None) if sizes else None)
            axis += 1
    return Selection(basic, pickers)


def _items(key: Any) -> list[Any]:
    return [_item(item) for item in (key if isinstance(key, tuple) else (key,))]


def _item(item: Any) -> Any:
    """A slice, integer, None or `...` unchanged; other indices as numpy arrays of bool or ints."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if not isinstance(item, bool | np.bool_ | list):
        try:
            return operator.index(item)
        except TypeError:
            if not hasattr(item, "__array__"):
                raise TypeError(
                    f"{type(item).__name__} is not an index: "
                    "give integers, slices, None, '...', masks or integer arrays"
                ) from None
    array = np.asarray(item)
    if array.size == 0 and isinstance(item, list):
        array = array.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise DtypeError(f"indices are {array.dtype}: cast them to an integer dtype or to bool")
    return array


def _width(item: Any) -> int:
    """The number of axes of the tensor that an item indexes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == np.bool_ else 1


def _pickers(array: Picker, sizes: Sequence[int]) -> list[Picker]:
    """An integer array as one; a mask as the indices of its true elements, an array per axis."""
    if array.dtype != np.bool_:
        return [array.astype(np.int64)]
    if array.shape != tuple(sizes):
        raise ShapeError(
            f"a mask of shape {array.shape} does not fit axes of shape {tuple(sizes)}: "
            "give equal shapes"
        )
    return list(np.nonzero(array)) if array.ndim else [np.zeros(int(array), np.int64)]


def _within(picker: Picker, size: int) -> Picker:
    wrong = (picker < -size) | (picker >= size)
    if wrong.any():
        raise IndexError(f"index {picker[wrong][0]} is beyond an axis of {size} elements")
    return np.where(picker < 0, picker + size, picker)
