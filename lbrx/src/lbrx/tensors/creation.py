"""Functions that create tensors from numbers, lists, numpy arrays and other libraries' arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.arrays.shape import MOST_ELEMENTS, Sizes, as_shape, expand, list_of
from lbrx.arrays.storage.cpu import copied, enough_memory, shared
from lbrx.errors import DtypeError, ShapeError
from lbrx.memory.zero_copy import shareable_span
from lbrx.tensors import dlpack
from lbrx.tensors import placement as devices
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.operands import array_of, as_scalar, host_scalar, move, placed
from lbrx.tensors.placement import default_device, kept_dtype


def tensor(data: Any, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor with a copy of an array, a (nested) list, a number or another tensor.

    Without a dtype, an array or a numpy scalar keeps its dtype (float64 becomes float32 on metal),
    Python floats and numpy's float64 scalars become float32, ints int64 and bools bool. Floats are
    converted to an integer dtype as `astype` does it. Without a device it is on the default device,
    and a copy of a tensor on that tensor's device. An array may be another library's on the NVIDIA
    GPU that lbrx computes on. Data that is not numeric, and integers that the dtype cannot hold,
    raise DtypeError; nested lists of unequal lengths raise ShapeError.

    >>> lbrx.tensor([[1, 2], [3, 4]], dtype="float16").shape
    (2, 2)
    """
    if isinstance(data, Tensor):
        moved = data.to_device(device or data.device)
        return call("cast", moved, dtype=dtype or moved.dtype)
    place = device or default_device()
    on_gpu = dlpack.import_cuda(data) if hasattr(data, "__dlpack_device__") else None
    if on_gpu is not None:
        return tensor(call("copy", Tensor(on_gpu)), dtype, place)
    return Tensor(array_of(data, place, dtype))


def asarray(
    obj: Any,
    /,
    *,
    dtype: DtypeLike | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor from an array, a (nested) list, a number or another tensor.

    A tensor that already has the dtype and the device is returned itself, unless copy=True.
    copy=False raises ValueError if a copy is needed; a numpy array is then shared as by
    `from_numpy`. Dtypes and other errors are those of `tensor`.
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
    """A tensor that shares an array's memory if the device can, else a tensor with a copy.

    Devices share complete memory pages: arrays of `lbrx.empty_aligned`, mapped files, and views of
    both. copy=False raises ValueError instead of copying; copy=True always copies. float64 becomes
    float32 on metal, in a copy. Do not write into shared memory: the tensor changes, and so do
    results that have not been computed yet.

    >>> a = lbrx.empty_aligned((2, 3))
    >>> a[:] = 1
    >>> lbrx.from_numpy(a, copy=False).sum().item()
    6.0
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__} is not a numpy array: use lbrx.tensor")
    place = device or default_device()
    dtype = kept_dtype(dt.parse(array.dtype), place)
    shared_storage = shared(array) if copy is not True and dtype.numpy == array.dtype else None
    same = devices.get(place).share(shared_storage) if shared_storage is not None else None
    if same is not None:
        return Tensor(same)
    if copy is False and array.size:
        raise ValueError(
            f"{place!r} cannot share the memory of {array.dtype}{list(array.shape)}, "
            + _why_not_shared(array, dtype)
        )
    return _placed(array, dtype, place)


def _why_not_shared(array: NDArray[Any], dtype: Dtype) -> str:
    if dtype.numpy != array.dtype:
        return f"it would become {dtype}: leave copy=None"
    if shareable_span(array) is not None:
        return "it has its own: leave copy=None"
    pages = "it does not fill complete memory pages"
    return f"{pages}: create the array with lbrx.empty_aligned, or leave copy=None"


def from_dlpack(
    x: dlpack.Exporter, /, *, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor over the memory of another library's array, on the cpu unless a device is given.

    The array must support DLPack and be in host memory, or on the NVIDIA GPU that lbrx computes
    on: then the tensor is on metal, and its kernels wait for the stream that computes the array.
    copy=True copies it; copy=False raises ValueError if a copy is needed, as for strides that are
    not multiples of the element size.

    >>> lbrx.from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    on_gpu = dlpack.import_cuda(x)
    if on_gpu is not None:
        if copy is False and device == "cpu":
            raise ValueError("an array on a GPU needs a copy to be on the cpu: leave copy=None")
        exported = Tensor(on_gpu)
        return call("copy", exported) if copy else exported.to_device(device or "metal")
    array = dlpack.import_array(x)
    result = None if copy else shared(array)
    if result is None:
        if copy is False:
            raise ValueError(f"an array with strides {array.strides} needs a copy: leave copy=None")
        result = copied(array, dt.parse(array.dtype))
    return Tensor(result).to_device(device or "cpu")


def full(
    shape: Sizes, fill_value: float, dtype: DtypeLike | None = None, device: str | None = None
) -> Tensor:
    """A tensor of a shape with every element equal to a number.

    Without a dtype it is float32, int64 or bool, as the number is a float, int or bool. A value
    that is not a number, or that the dtype cannot hold, raises DtypeError.

    >>> lbrx.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    number = as_scalar(fill_value)
    if number is None:
        raise DtypeError(f"fill_value is {type(fill_value).__name__}: give a number")
    wanted = dt.of_scalar(number) if dtype is None else dt.parse(dtype)
    element = host_scalar(number, wanted)
    repeated = replace(element, layout=expand(element.layout, as_shape(shape)))
    place = device or default_device()
    return Tensor(copied(repeated.numpy(), wanted) if place == "cpu" else move(repeated, place))


def zeros(shape: Sizes, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor of zeros with a shape (an integer or several), float32 unless a dtype is given."""
    return full(shape, 0, dtype or dt.float32, device)


def ones(shape: Sizes, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor of ones with a shape (an integer or several), float32 unless a dtype is given."""
    return full(shape, 1, dtype or dt.float32, device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DtypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """A vector of the numbers start, start + step, ... before stop.

    arange(n) counts from 0 to n - 1. Without a dtype it is int64 if all arguments are integers,
    else float32. A step of 0 raises ShapeError.

    >>> lbrx.arange(5, 0, -2).tolist()
    [5, 3, 1]
    """
    if stop is None:
        start, stop = 0, start
    numbers = [_number(value) for value in (start, stop, step)]
    if step == 0:
        raise ShapeError(f"arange from {start} to {stop} never ends with step=0: give another step")
    if not (stop - start) / step < MOST_ELEMENTS:  # also NaN
        raise ShapeError(f"arange from {start} to {stop} by {step} has too many elements")
    with enough_memory(int((stop - start) / step) * 8):
        values = np.arange(start, stop, step)
    wanted = dt.result_type(*numbers) if dtype is None else dtype
    return _placed(values, dt.parse(wanted), device)


def _number(value: float) -> dt.Scalar:
    number = as_scalar(value)
    if number is None:
        raise DtypeError(f"a limit or step is {type(value).__name__}: give numbers")
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
    """A matrix with ones on diagonal k and zeros elsewhere, float32 unless a dtype is given.

    It has as many columns as rows unless given. Diagonal k > 0 is above the main one, k < 0 below.
    """
    shape = as_shape((rows, rows if columns is None else columns))
    with enough_memory(math.prod(shape) * 8):
        values = np.eye(shape[0], shape[1], k)
    return _placed(values, dt.parse(dtype or dt.float32), device)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """x where the condition is True, y elsewhere. The operands broadcast.

    condition must be bool, otherwise DtypeError is raised. The dtype is that of x and y, promoted.

    >>> lbrx.where(lbrx.tensor([True, False]), 1, 0.5).tolist()
    [1.0, 0.5]
    """
    return call("where", condition, x, y)


def concat(tensors: Sequence[Any], axis: int | None = 0) -> Tensor:
    """The tensors joined along an existing axis, in the promoted dtype.

    Their shapes may only differ in that axis; otherwise ShapeError is raised. With axis=None each
    is flattened first.

    >>> lbrx.concat([lbrx.ones(2), lbrx.zeros(1)]).tolist()
    [1.0, 1.0, 0.0]
    """
    if not len(tensors):
        raise ShapeError("concat of no tensors: give one or more")
    if axis is not None:
        return call("concat", *tensors, axis=axis)
    return call("concat", *(part.flatten() for part in _on_one_device(tensors)), axis=0)


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors of equal shapes joined along a new axis, in the promoted dtype.

    Shapes that differ raise ShapeError.

    >>> lbrx.stack([lbrx.ones(3), lbrx.zeros(3)], axis=1).shape
    (3, 2)
    """
    if not len(tensors):
        raise ShapeError("stack of no tensors: give one or more")
    parts = _on_one_device(tensors)
    if len({part.shape for part in parts}) > 1:
        shapes = list_of(part.shape for part in parts)
        raise ShapeError(f"stack of shapes {shapes}: give equal shapes, or use concat")
    return concat([part.unsqueeze(axis) for part in parts], axis)


def _on_one_device(parts: Sequence[Any]) -> list[Tensor]:
    """Tensors as they are; everything else copied to the device of the first tensor."""
    place = next((part.device for part in parts if isinstance(part, Tensor)), None)
    return [part if isinstance(part, Tensor) else tensor(part, device=place) for part in parts]
