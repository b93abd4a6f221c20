"""Tensors from numbers, lists, numpy and other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.dtype import Dtype, DtypeLike
from lbrx.errors import DtypeError, ShapeError
from lbrx.shape import Sizes, as_shape, expand, list_of
from lbrx.storage.cpu import copied, shared
from lbrx.tensor import dlpack
from lbrx.tensor import placement as devices
from lbrx.tensor.core import Tensor, call
from lbrx.tensor.operands import array_of, as_scalar, host_scalar, move, placed
from lbrx.tensor.placement import default_device, kept_dtype


def tensor(data: Any, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor with a copy of an array, a (nested) list or a number.

    An array keeps its type, but for float64 on metal, which becomes float32; Python's floats
    become float32 and its ints int64.
    """
    if isinstance(data, Tensor):
        moved = data.to_device(device or data.device)
        return call("cast", moved, dtype=dtype or moved.dtype)
    place = device or default_device()
    return Tensor(array_of(data, place, dtype))


def asarray(
    obj: Any,
    /,
    *,
    dtype: DtypeLike | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor of an array, a (nested) list, a number or another tensor.

    A tensor that has the dtype and is on the device already is returned as it is, unless copy is
    True. copy=False raises ValueError where a copy would be needed.
    """
    if isinstance(obj, Tensor):
        place, wanted = device or obj.device, dt.parse(dtype or obj.dtype)
        if place == obj.device and wanted is obj.dtype:
            return call("copy", obj) if copy else obj
    elif copy is False and isinstance(obj, np.ndarray) and dtype in (None, dt.parse(obj.dtype)):
        return from_numpy(obj, device, copy=False)
    if copy is False:
        kind = type(obj).__name__
        raise ValueError(f"this {kind} cannot become a tensor without a copy: leave copy=None")
    return tensor(obj, dtype, device)


def _placed(values: NDArray[Any], dtype: Dtype, device: str | None) -> Tensor:
    return Tensor(placed(values, dtype, device or default_device()))


def from_numpy(
    array: NDArray[Any], device: str | None = None, *, copy: bool | None = None
) -> Tensor:
    """A tensor over the array's own memory if that is whole pages, else over one copy.

    Whole pages are what Apple's devices can share: memory of `lbrx.empty_aligned`, mapped files,
    and views of both. copy=False raises instead of copying. float64 becomes float32 on metal, in
    a copy. Who writes into shared memory writes into the tensor, also as what is still pending
    will read it.
    """
    place = device or default_device()
    dtype = kept_dtype(dt.parse(array.dtype), place)
    own = shared(array) if copy is not True and dtype.numpy == array.dtype else None
    same = devices.get(place).share(own) if own is not None else None
    if same is not None:
        return Tensor(same)
    if copy is False and array.size:
        own_pages = "it does not lie on whole pages of its own"
        reason = own_pages if dtype.numpy == array.dtype else f"it would become {dtype}"
        raise ValueError(
            f"{place!r} cannot share the memory of {array.dtype}{list(array.shape)}, {reason}: "
            "make the array with lbrx.empty_aligned, or allow the copy"
        )
    return _placed(array, dtype, place)


def from_dlpack(
    x: dlpack.Exporter, /, *, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor over the memory of another library's array, on the cpu unless a device is given.

    The memory must be the host's. copy=False raises ValueError where a copy would be needed.
    """
    array = dlpack.import_array(x)
    result = None if copy else shared(array)
    if result is None:
        if copy is False:
            raise ValueError(f"strides {array.strides} of the array need a copy: leave copy=None")
        result = copied(array, dt.parse(array.dtype))
    return Tensor(result).to_device(device or "cpu")


def full(
    shape: Sizes, value: float, dtype: DtypeLike | None = None, device: str | None = None
) -> Tensor:
    """Every element the same; without a dtype, that which the number has on its own."""
    number = as_scalar(value)
    if number is None:
        raise DtypeError(f"{type(value).__name__} is no number to fill a tensor with")
    wanted = dt.of_scalar(number) if dtype is None else dt.parse(dtype)
    element = host_scalar(number, wanted)
    repeated = replace(element, layout=expand(element.layout, as_shape(shape)))
    place = device or default_device()
    return Tensor(copied(repeated.numpy(), wanted) if place == "cpu" else move(repeated, place))


def zeros(shape: Sizes, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor of zeros, float32 unless a dtype is given."""
    return full(shape, 0, dtype or dt.float32, device)


def ones(shape: Sizes, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor of ones, float32 unless a dtype is given."""
    return full(shape, 1, dtype or dt.float32, device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DtypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers from start (0 if only one limit is given) up to but without stop."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ShapeError(f"arange from {start} to {stop} never ends with step 0: give another")
    values = np.arange(start, stop, step)
    wanted = dt.result_type(*map(_number, (start, stop, step))) if dtype is None else dtype
    return _placed(values, dt.parse(wanted), device)


def _number(value: float) -> dt.Scalar:
    number = as_scalar(value)
    if number is None:
        raise DtypeError(f"{type(value).__name__} is no number")
    return number


def eye(
    rows: int,
    columns: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DtypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """A matrix with ones on diagonal k (above the main one if positive) and zeros elsewhere."""
    return _placed(np.eye(rows, columns, k), dt.parse(dtype or dt.float32), device)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """x where the condition holds, y elsewhere."""
    return call("where", condition, x, y)


def concat(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    return call("concat", *tensors, axis=axis)


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    place = next((part.device for part in tensors if isinstance(part, Tensor)), None)
    parts = [part if isinstance(part, Tensor) else tensor(part, device=place) for part in tensors]
    if len({part.shape for part in parts}) > 1:
        shapes = list_of(part.shape for part in parts)
        raise ShapeError(f"stack of shapes {shapes}: they must be equal, or use concat")
    return concat([part.unsqueeze(axis) for part in parts], axis)
