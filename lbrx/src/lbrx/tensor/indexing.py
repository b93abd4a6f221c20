"""Tensor indexing: slices are views; masks and integer arrays pick elements, as numpy's do."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbrx import shape as sh
from lbrx.errors import DtypeError, ShapeError

if TYPE_CHECKING:
    from lbrx.tensor.core import Tensor

Picker = NDArray[Any]


def index(tensor: Tensor, key: Any) -> Tensor:
    items = [_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    if not any(isinstance(item, np.ndarray) for item in items):
        return tensor.view(sh.index(tensor.array.layout, items))
    used = sum(_width(item) for item in items)
    return _pick(tensor, sh.expand_ellipsis(items, tensor.ndim, used))


def _item(item: Any) -> Any:
    """A slice, an int, None or `...` as it is; anything else as a numpy array of bool or ints."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if not isinstance(item, bool | np.bool_ | list):
        try:
            return operator.index(item)
        except TypeError:
            if not hasattr(item, "__array__"):
                raise TypeError(
                    f"{type(item).__name__} is no index: "
                    "use integers, slices, None, '...', masks or integer arrays"
                ) from None
    array = np.asarray(item)
    if array.size == 0 and isinstance(item, list):
        array = array.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise DtypeError(f"indices are {array.dtype}: cast them to an integer type or to bool")
    return array


def _width(item: Any) -> int:
    """How many axes of the tensor an item stands for."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == np.bool_ else 1


def _pick(tensor: Tensor, items: Sequence[Any]) -> Tensor:
    """First the slices, as a view; then the picked axes as one, and one `take` from it."""
    basic: list[Any] = []
    pickers: dict[int, Picker] = {}
    shape = iter(tensor.shape)
    axis = 0
    for item in items:
        sizes = [next(shape) for _ in range(_width(item))]
        if isinstance(item, slice) or item is None:
            basic.append(item)
            axis += 1
            continue
        # An integer beside arrays takes part as an array of one element.
        for picker, size in zip(_pickers(np.asarray(item), sizes), sizes or (1,), strict=True):
            pickers[axis] = _within(picker, size)
            basic.append(slice(None) if sizes else None)
            axis += 1
    view = tensor.view(sh.index(tensor.array.layout, basic))
    return _take(view, pickers)


def _pickers(array: Picker, sizes: Sequence[int]) -> list[Picker]:
    """Integer arrays as they are; a mask as the places where it is true, axis by axis."""
    if array.dtype != np.bool_:
        return [array.astype(np.int64)]
    if array.shape != tuple(sizes):
        raise ShapeError(
            f"a mask of shape {array.shape} does not fit axes of shape {tuple(sizes)}: "
            "they must be equal"
        )
    return list(np.nonzero(array)) if array.ndim else [np.zeros(int(array), np.int64)]


def _within(picker: Picker, size: int) -> Picker:
    wrong = (picker < -size) | (picker >= size)
    if wrong.any():
        raise IndexError(f"index {picker[wrong][0]} is beyond an axis of {size} elements")
    return np.where(picker < 0, picker + size, picker)


def _take(view: Tensor, pickers: dict[int, Picker]) -> Tensor:
    """Elements at the pickers' broadcast places. numpy puts their axes where the picked axes were,
    or first where slices lie between those."""
    picked = sorted(pickers)
    rest = [axis for axis in range(view.ndim) if axis not in pickers]
    sizes = [view.shape[axis] for axis in picked]
    shape = sh.broadcast(*(picker.shape for picker in pickers.values()))
    flat = np.zeros(shape, np.int64)
    for axis, size in zip(picked, sizes, strict=True):
        flat = flat * size + pickers[axis]
    remaining = [view.shape[axis] for axis in rest]
    source = view.permute(*picked, *rest).reshape(math.prod(sizes), *remaining)
    taken: Tensor = source.take(flat, axis=0)
    adjacent = picked == list(range(picked[0], picked[-1] + 1))
    before = picked[0] if adjacent else 0
    order = list(range(taken.ndim))
    front, back = order[: len(shape)], order[len(shape) :]
    return taken.permute(*back[:before], *front, *back[before:])
