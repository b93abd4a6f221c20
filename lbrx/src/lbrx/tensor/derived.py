"""Arrays made of others when they are first used. Quantized values stay packed meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx import quant
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.shape import Shape
from lbrx.storage import Array, LazyStorage, PackedStorage

_FLOAT8 = {
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f8_e8m0": ml_dtypes.float8_e8m0fnu,
}


def packed(scheme: str, parts: Mapping[str, Array], shape: Shape) -> Array:
    """Values of a quantization scheme: `data`, and what lies beside it."""

    def decode() -> NDArray[Any]:
        arrays = {name: part.numpy() for name, part in parts.items()}
        return decoded(scheme, arrays.pop("data"), arrays, shape)

    return Array(PackedStorage(scheme, parts, shape, decode), sh.contiguous(shape), dt.float32)


def decoded(
    scheme: str, data: NDArray[Any], beside: Mapping[str, NDArray[Any]], shape: Shape
) -> NDArray[Any]:
    if small := _FLOAT8.get(scheme):
        values: NDArray[Any] = np.ascontiguousarray(data).view(small).astype(np.float32)
        return values
    found = quant.find(scheme)
    settings = found.name, found.bits, found.group_size, found.symmetric
    scales, zero_points, biases = map(beside.get, ("scales", "zero_points", "biases"))
    info = quant.QuantizationInfo(*settings, scales, zero_points, biases)
    return quant.dequantize(data, info, shape)


def lazy(shape: Shape, dtype: Dtype, make: Callable[[], NDArray[Any]]) -> Array:
    storage = LazyStorage(math.prod(shape) * dtype.itemsize, make)
    return Array(storage, sh.contiguous(shape), dtype)


def take_rows(array: Array, order: NDArray[np.intp]) -> Array:
    """Rows in another order."""
    if isinstance(array.storage, PackedStorage):
        return _map_parts([array], array.layout.shape, lambda parts: take_rows(parts[0], order))
    return lazy(array.layout.shape, array.dtype, lambda: array.numpy()[order])


def take_part(array: Array, index: int) -> Array:
    """One index of the first axis: a view."""
    if isinstance(array.storage, PackedStorage):
        shape = array.layout.shape[1:]
        return _map_parts([array], shape, lambda parts: take_part(parts[0], index))
    return Array(array.storage, sh.index(array.layout, (index,)), array.dtype)


def stack(arrays: Sequence[Array]) -> Array:
    """Arrays of one shape and type along a new first axis."""
    first = arrays[0]
    shape = (len(arrays), *first.layout.shape)
    if isinstance(first.storage, PackedStorage):
        return _map_parts(arrays, shape, stack)
    return lazy(shape, first.dtype, lambda: np.stack([array.numpy() for array in arrays]))


def shift(array: Array, by: float) -> Array:
    """A number added to each element, in float32."""

    def add() -> NDArray[Any]:
        return array.numpy().astype(np.float32) + np.float32(by)

    return lazy(array.layout.shape, dt.float32, add)


def _map_parts(
    arrays: Sequence[Array], shape: Shape, change: Callable[[Sequence[Array]], Array]
) -> Array:
    """Do to each part of packed values what is done to the values."""
    storages = [a.storage for a in arrays if isinstance(a.storage, PackedStorage)]
    parts = {name: change([s.parts[name] for s in storages]) for name in storages[0].parts}
    return packed(storages[0].scheme, parts, shape)


def packed_rows(array: Array) -> dict[str, Array] | None:
    """The stored parts of the rows that a view of packed values shows; None where it shows parts
    of rows, or rows in another order, or is not packed at all."""
    storage, layout = array.storage, array.layout
    if not isinstance(storage, PackedStorage) or not layout.shape or not layout.is_contiguous:
        return None
    columns = storage.shape[-1]
    if layout.shape[-1] != columns or columns == 0 or layout.offset % columns:
        return None
    first = layout.offset // columns
    return {name: _rows(part, first, layout.shape[:-1]) for name, part in storage.parts.items()}


def moved(array: Array, move: Callable[[Array], Array]) -> Array | None:
    """Packed values with each part moved to a device; None for those of which `packed_rows` has
    none, and for eight-bit floats, which no kernel reads."""
    parts = packed_rows(array)
    if parts is None or (scheme := packed_scheme(array)) is None:
        return None
    return packed(scheme, {name: move(part) for name, part in parts.items()}, array.layout.shape)


def packed_scheme(array: Array) -> str | None:
    """The quantization scheme that an array is stored in."""
    storage = array.storage
    if not isinstance(storage, PackedStorage) or storage.scheme not in quant.SCHEMES:
        return None
    return storage.scheme


def _rows(part: Array, first: int, leading: Shape) -> Array:
    """Rows of a contiguous part, from one on."""
    width = part.layout.shape[-1]
    offset = part.layout.offset + first * width
    return Array(part.storage, sh.contiguous((*leading, width), offset), part.dtype)
