"""Arrays made of others when they are first used. Quantized values stay packed.

`read_rows` reads some rows of such an array without making the rest of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array, LazyStorage, PackedStorage

_FLOAT8 = {
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f8_e8m0": ml_dtypes.float8_e8m0fnu,
}


def packed(scheme: str, parts: Mapping[str, Array], shape: Shape) -> Array:
    """Values of a shape in a quantization scheme, over its stored parts: `data` and companions."""

    def decode() -> NDArray[Any]:
        arrays = {name: part.numpy() for name, part in parts.items()}
        return decoded(scheme, arrays.pop("data"), arrays, shape)

    return Array(PackedStorage(scheme, parts, shape, decode), sh.contiguous(shape), dt.float32)


def decoded(
    scheme: str, data: NDArray[Any], beside: Mapping[str, NDArray[Any]], shape: Shape
) -> NDArray[Any]:
    """The float32 values of stored parts: `data` and the arrays beside it."""
    if small := _FLOAT8.get(scheme):
        values: NDArray[Any] = np.ascontiguousarray(data).view(small).astype(np.float32)
        return values
    return quant.dequantize(data, quant.describe(scheme, **beside), shape)


RowIndex = slice | NDArray[np.intp]
"""Rows by number, as a range with a start and a stop or as an array. The rows of an array are those
of all axes but the last, in row-major order; a vector is one row."""


def row_count(shape: Shape) -> int:
    return math.prod(shape[:-1])


def column_count(shape: Shape) -> int:
    return shape[-1] if shape else 1


class RowStorage(LazyStorage):
    """Host memory that a function fills with all rows at the first use; `rows` reads some only."""

    def __init__(self, nbytes: int, rows: int, read: Callable[[RowIndex], NDArray[Any]]) -> None:
        super().__init__(nbytes, lambda: read(slice(0, rows)))
        self._read: Callable[[RowIndex], NDArray[Any]] | None = read

    def host(self) -> NDArray[np.uint8]:
        data = super().host()
        self._read = None  # it keeps the sources in memory
        return data

    def rows(self, index: RowIndex) -> NDArray[Any] | None:
        """Those rows alone; None once all of them are in memory."""
        read = self._read
        return None if read is None else read(index)


def by_rows(shape: Shape, dtype: Dtype, read: Callable[[RowIndex], NDArray[Any]]) -> Array:
    """An array whose rows a function gives, as [rows, columns]."""
    nbytes = math.prod(shape) * dtype.itemsize
    return Array(RowStorage(nbytes, row_count(shape), read), sh.contiguous(shape), dtype)


def lazy_copy(array: Array) -> Array:
    """A copy of the elements in host memory, made at the first use."""
    shape = array.layout.shape
    storage = LazyStorage(math.prod(shape) * array.dtype.itemsize, array.numpy)
    return Array(storage, sh.contiguous(shape), array.dtype)


def read_rows(array: Array, index: RowIndex) -> NDArray[Any]:
    """Some rows of an array, as [rows, columns]. They are a view if they are contiguous in memory;
    packed values are decoded."""
    storage, layout = array.storage, array.layout
    columns = column_count(layout.shape)
    if isinstance(storage, PackedStorage) and layout == sh.contiguous(storage.shape):
        parts = {name: read_rows(part, index) for name, part in storage.parts.items()}
        data = parts.pop("data")
        return decoded(storage.scheme, data, parts, (len(data), columns))
    whole = layout.is_contiguous and columns > 0 and layout.offset % columns == 0
    if isinstance(storage, RowStorage) and whole:
        rows = storage.rows(_moved_index(index, layout.offset // columns))
        if rows is not None:
            return rows
    return array.numpy().reshape(row_count(layout.shape), columns)[index]


def stored_arrays(array: Array) -> dict[str, Array]:
    """The stored parts of packed values by name, or else the array itself as `data`."""
    return array.storage.parts if isinstance(array.storage, PackedStorage) else {"data": array}


def _moved_index(index: RowIndex, by: int) -> RowIndex:
    return slice(index.start + by, index.stop + by) if isinstance(index, slice) else index + by


def take_rows(array: Array, order: NDArray[np.intp]) -> Array:
    """The indices of the first axis in another order."""
    shape = array.layout.shape
    if isinstance(array.storage, PackedStorage):
        return _map_parts([array], shape, lambda parts: take_rows(parts[0], order))
    if len(shape) == 1:
        return by_rows(shape, array.dtype, lambda index: read_rows(array, index)[:, order])
    each = math.prod(shape[1:-1])
    rows = (order[:, None] * each + np.arange(each)).reshape(-1)
    return by_rows(shape, array.dtype, lambda index: read_rows(array, rows[index]))


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
    return by_rows(shape, first.dtype, lambda index: _read_stack(arrays, index))


def _read_stack(arrays: Sequence[Array], index: RowIndex) -> NDArray[Any]:
    """Rows of arrays of one shape that follow each other."""
    each = row_count(arrays[0].layout.shape)
    if not isinstance(index, slice):
        return _read_stack(arrays, slice(0, each * len(arrays)))[index]
    numbers = range(index.start // each, -(-index.stop // each)) if each else range(0)
    parts = [
        read_rows(
            arrays[i], slice(max(index.start - i * each, 0), min(index.stop - i * each, each))
        )
        for i in numbers
    ]
    if not parts:
        return read_rows(arrays[0], slice(0, 0))
    return np.concatenate(parts)


def shift(array: Array, by: float) -> Array:
    """A number added to each element, in float32."""

    def add(index: RowIndex) -> NDArray[Any]:
        return read_rows(array, index).astype(np.float32) + np.float32(by)

    return by_rows(array.layout.shape, dt.float32, add)


def _map_parts(
    arrays: Sequence[Array], shape: Shape, change: Callable[[Sequence[Array]], Array]
) -> Array:
    """Apply to each stored part of packed values what is applied to the values."""
    storages = [a.storage for a in arrays if isinstance(a.storage, PackedStorage)]
    parts = {name: change([s.parts[name] for s in storages]) for name in storages[0].parts}
    return packed(storages[0].scheme, parts, shape)


def packed_rows(array: Array) -> dict[str, Array] | None:
    """The stored parts of a view of packed values. None if the array is not packed, or if the view
    has incomplete rows or rows in another order."""
    storage, layout = array.storage, array.layout
    if not isinstance(storage, PackedStorage) or not layout.shape or not layout.is_contiguous:
        return None
    columns = storage.shape[-1]
    if layout.shape[-1] != columns or columns == 0 or layout.offset % columns:
        return None
    first = layout.offset // columns
    return {name: _rows(part, first, layout.shape[:-1]) for name, part in storage.parts.items()}


def moved(array: Array, move: Callable[[Array], Array]) -> Array | None:
    """Packed values with each part moved to a device. None where `packed_rows` gives None, and for
    eight-bit floats, which are not a quantization scheme."""
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
    """Rows of a contiguous part, starting at row `first`."""
    width = part.layout.shape[-1]
    offset = part.layout.offset + first * width
    return Array(part.storage, sh.contiguous((*leading, width), offset), part.dtype)
