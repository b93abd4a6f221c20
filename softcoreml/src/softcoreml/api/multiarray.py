"""MLMultiArray: a strided array over memory of its own or of the program."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided

from softcoreml import mil
from softcoreml.api.objects import Object, caught
from softcoreml.errors import InputError
from softcoreml.format.description_message import ARRAY_TYPES

MLMultiArrayDataTypeDouble = 65600
MLMultiArrayDataTypeFloat64 = 65600
MLMultiArrayDataTypeFloat32 = 65568
MLMultiArrayDataTypeFloat = 65568
MLMultiArrayDataTypeFloat16 = 65552
MLMultiArrayDataTypeInt32 = 131104
MLMultiArrayDataTypeInt8 = 131080

DATA_TYPES = {mil.DTYPES[name]: code for code, name in ARRAY_TYPES.items()}
"""The code of each NumPy type that a multi-array may hold."""


class MLMultiArray(Object):
    """An array of numbers. `MLMultiArray.over(array)` is one over a NumPy array's memory."""

    _array: np.ndarray[Any, Any]

    @classmethod
    def over(cls, array: np.ndarray[Any, Any]) -> MLMultiArray:
        """Not of Core ML: a multi-array that shares the memory of a NumPy array."""
        if array.dtype not in DATA_TYPES:
            raise InputError(f"a multi-array cannot hold {array.dtype}: give float16, float32, ...")
        made = cls.alloc()
        made._array = array
        return made

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Not of Core ML: the same memory as a NumPy array."""
        return self._array

    # ML: -initWithShape:dataType:error:
    def initWithShape_dataType_error_(
        self, shape: Sequence[int], data_type: int, error: None
    ) -> tuple[Self | None, Any]:
        return caught(error, lambda: self._become(_zeros(shape, data_type)))

    # ML: -initWithShape:dataType:strides:
    def initWithShape_dataType_strides_(
        self, shape: Sequence[int], data_type: int, strides: Sequence[int]
    ) -> Self:
        sizes, steps = _shape(shape), _strides(strides, shape)
        extent = _extent(sizes, steps)
        memory = np.zeros(extent, _dtype(data_type))
        return self._become(_strided(memory, sizes, steps))

    # ML: -initWithDataPointer:shape:dataType:strides:deallocator:error:
    def initWithDataPointer_shape_dataType_strides_deallocator_error_(
        self,
        pointer: Any,
        shape: Sequence[int],
        data_type: int,
        strides: Sequence[int],
        deallocator: Callable[[Any], None] | None,
        error: None,
    ) -> tuple[Self | None, Any]:
        """`pointer` is a writable buffer, a ctypes array, or an address; nothing is copied."""

        def make() -> Any:
            sizes, steps = _shape(shape), _strides(strides, shape)
            memory = _memory(pointer, _extent(sizes, steps), _dtype(data_type))
            made = self._become(_strided(memory, sizes, steps))
            if deallocator is not None:
                weakref.finalize(made._array, deallocator, pointer)
            return made

        return caught(error, make)

    # ML: -initWithPixelBuffer:shape:
    def initWithPixelBuffer_shape_(self, pixels: Any, shape: Sequence[int]) -> Self:
        """Over a buffer of OneComponent16Half, whose rows are the last dimension."""
        array = pixels.array
        if array.dtype != np.float16:
            raise InputError("a multi-array over pixels needs a buffer of OneComponent16Half")
        return self._become(array.reshape(_shape(shape)))

    # ML: +multiArrayByConcatenatingMultiArrays:alongAxis:dataType:
    @classmethod
    def multiArrayByConcatenatingMultiArrays_alongAxis_dataType_(
        cls, arrays: Sequence[MLMultiArray], axis: int, data_type: int
    ) -> MLMultiArray:
        parts = [one._array for one in arrays]
        return cls.over(np.concatenate(parts, axis=axis).astype(_dtype(data_type)))

    def _become(self, array: np.ndarray[Any, Any]) -> Self:
        self._array = array
        return self

    # ML: -dataType
    def dataType(self) -> int:
        return DATA_TYPES[self._array.dtype]

    # ML: -shape
    def shape(self) -> list[int]:
        return list(self._array.shape)

    # ML: -strides
    def strides(self) -> list[int]:
        """In elements."""
        return [step // self._array.itemsize for step in self._array.strides]

    # ML: -count
    def count(self) -> int:
        return self._array.size

    # ML: -dataPointer
    def dataPointer(self) -> DataPointer:
        return DataPointer(_bytes(self._array))

    # ML: -getBytesWithHandler:
    def getBytesWithHandler_(self, handler: Callable[[memoryview, int], Any]) -> None:
        data = _bytes(self._array).toreadonly()
        handler(data, len(data))

    # ML: -getMutableBytesWithHandler:
    def getMutableBytesWithHandler_(
        self, handler: Callable[[memoryview, int, list[int]], Any]
    ) -> None:
        data = _bytes(self._array)
        handler(data, len(data), self.strides())

    # ML: -transferToMultiArray:
    def transferToMultiArray_(self, other: MLMultiArray) -> None:
        """Copies all values; shapes must be equal, types may differ."""
        if self._array.shape != other._array.shape:
            raise ValueError(f"{self.shape()} does not fit a multi-array of {other.shape()}")
        np.copyto(other._array, self._array, casting="unsafe")

    # ML: -objectAtIndexedSubscript:
    def objectAtIndexedSubscript_(self, index: int) -> int | float:
        """By position in row-major order."""
        return self._array[np.unravel_index(index, self._array.shape)].item()  # type: ignore[no-any-return]

    # ML: -setObject:atIndexedSubscript:
    def setObject_atIndexedSubscript_(self, value: float, index: int) -> None:
        self._array[np.unravel_index(index, self._array.shape)] = value

    # ML: -objectForKeyedSubscript:
    def objectForKeyedSubscript_(self, key: Sequence[int]) -> int | float:
        """By one index for each dimension."""
        return self._array[self._key(key)].item()  # type: ignore[no-any-return]

    # ML: -setObject:forKeyedSubscript:
    def setObject_forKeyedSubscript_(self, value: float, key: Sequence[int]) -> None:
        self._array[self._key(key)] = value

    def _key(self, key: Sequence[int]) -> tuple[int, ...]:
        if len(key) != self._array.ndim:
            raise IndexError(f"{len(key)} indices for {self._array.ndim} dimensions")
        return tuple(int(one) for one in key)

    def __getitem__(self, key: int | Sequence[int]) -> int | float:
        if isinstance(key, Sequence):
            return self.objectForKeyedSubscript_(key)
        return self.objectAtIndexedSubscript_(key)

    def __setitem__(self, key: int | Sequence[int], value: float) -> None:
        if isinstance(key, Sequence):
            self.setObject_forKeyedSubscript_(value, key)
        else:
            self.setObject_atIndexedSubscript_(value, key)

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"{self._array.dtype.name} {' x '.join(map(str, self._array.shape))} array"


class DataPointer:
    """What PyObjC returns for a pointer to memory of unknown length (`objc.varlist`)."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def as_buffer(self, count: int) -> memoryview:
        """The first `count` bytes, without a copy."""
        return self._data[:count]

    def as_tuple(self, count: int) -> tuple[bytes, ...]:
        return tuple(bytes(self._data[place : place + 1]) for place in range(count))

    def __getitem__(self, place: int) -> bytes:
        return bytes(self._data[place : place + 1])


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in shape)
    if not sizes or min(sizes) < 0:
        raise InputError(f"{list(shape)} is not a shape: give one size for each dimension")
    return sizes


def _strides(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    steps = tuple(int(step) for step in strides)
    if len(steps) != len(shape) or (steps and min(steps) < 0):
        raise InputError(f"strides {list(strides)} do not fit the shape {list(shape)}")
    return steps


def _dtype(data_type: int) -> np.dtype[Any]:
    if data_type not in ARRAY_TYPES:
        raise InputError(f"{data_type} is not an MLMultiArrayDataType")
    return mil.DTYPES[ARRAY_TYPES[data_type]]


def _zeros(shape: Sequence[int], data_type: int) -> np.ndarray[Any, Any]:
    try:
        return np.zeros(_shape(shape), _dtype(data_type))
    except (MemoryError, ValueError) as problem:
        raise InputError(f"no memory for a multi-array of {list(shape)}: {problem}") from None


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last that an array of these strides reaches."""
    if not prod(shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def _strided(
    memory: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    steps = [step * memory.itemsize for step in strides]
    return as_strided(memory, shape, steps)


def _memory(pointer: Any, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """`count` elements at a pointer, not copied."""
    if isinstance(pointer, ctypes.c_void_p):
        pointer = pointer.value
    if isinstance(pointer, int):
        pointer = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    try:
        data = memoryview(pointer).cast("B")
    except TypeError as problem:
        raise InputError(f"{type(pointer).__name__} is not memory: {problem}") from None
    if len(data) < count * dtype.itemsize:
        raise InputError(f"{len(data)} bytes for {count} elements of {dtype}")
    return np.frombuffer(data, dtype, count)


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes from the first to the last element, also of an array that is not contiguous."""
    steps = tuple(step // array.itemsize for step in array.strides)
    flat = as_strided(array, (_extent(array.shape, steps),), (array.itemsize,))
    return flat.view(np.uint8).data
