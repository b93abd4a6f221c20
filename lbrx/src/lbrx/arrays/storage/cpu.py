"""Host memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage.array import Array, Bytes
from lbrx.errors import OutOfMemory
from lbrx.process import memory_in_use, memory_limit

PAGE = max(mmap.PAGESIZE, 16 << 10)  # macOS has pages of 16 KiB


class CpuStorage:
    """Host memory that a numpy array keeps alive."""

    device = "cpu"

    def __init__(self, data: Bytes) -> None:
        self._data = data

    @classmethod
    def allocate(cls, nbytes: int) -> CpuStorage:
        """Uninitialised memory in complete pages, which a GPU can use without a copy. Raises
        OutOfMemory if the process may not use that much."""
        with enough_memory(nbytes):
            room = np.empty(_whole_pages(nbytes) + PAGE, np.uint8)
        start = -room.ctypes.data % PAGE
        return cls(room[start : start + nbytes])

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return self._data.nbytes

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self._data.ctypes.data

    def host(self) -> Bytes:
        """The bytes, without a copy."""
        return self._data

    def __repr__(self) -> str:
        return f"<CpuStorage of {self.nbytes} bytes>"


class HostCache(CpuStorage):
    """Memory of a cache: `overwrite` writes it in place."""


class LentStorage(CpuStorage):
    """Memory of the caller: a device copies it, even if it could share it."""


class ConstantStorage(CpuStorage):
    """One number on the host."""

    def __init__(self, value: bytes) -> None:
        super().__init__(np.frombuffer(value, np.uint8))
        self.value = value


class NumberStorage(CpuStorage):
    """A number on the host that may change when commands are replayed."""

    def __init__(self, data: Bytes, number: int) -> None:
        super().__init__(data)
        self.number = number  # its index among the numbers of the replay

    @property
    def argument(self) -> bytes:
        """Its bytes, for an argument of a command whose value may change."""
        return self._data.tobytes()


@contextmanager
def enough_memory(nbytes: int) -> Iterator[None]:
    """For numpy's allocations within: raises OutOfMemory at once for more bytes than the process
    may use, and in place of numpy's error."""
    limit = memory_limit()
    if nbytes > limit:
        raise OutOfMemory(nbytes, memory_in_use(), limit)
    try:
        yield
    except MemoryError as problem:
        if isinstance(problem, OutOfMemory):
            raise
        raise OutOfMemory(nbytes, memory_in_use(), limit) from problem


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def allocate(shape: Sequence[int], dtype: Dtype) -> Array:
    """A contiguous array in new, uninitialised memory."""
    layout = sh.contiguous(tuple(shape))
    return Array(CpuStorage.allocate(layout.size * dtype.itemsize), layout, dtype)


def empty_aligned(shape: sh.Sizes, dtype: DtypeLike = dt.float32) -> NDArray[Any]:
    """An uninitialised numpy array in complete memory pages, which `from_numpy` never copies.

    >>> a = lbrx.empty_aligned((2, 3), "float16")
    """
    return allocate(sh.as_shape(shape), dt.parse(dtype)).writable()


def copied(values: NDArray[Any], dtype: Dtype) -> Array:
    """A copy of the values in new memory, cast to a type."""
    array = allocate(values.shape, dtype)
    with np.errstate(all="ignore"):
        np.copyto(array.writable(), values, casting="unsafe")
    return array


def shared(values: NDArray[Any]) -> Array | None:
    """An array over the same memory, or None if strides are not multiples of the element size."""
    dtype = dt.parse(values.dtype)
    size = dtype.itemsize
    if not values.dtype.isnative or any(stride % size for stride in values.strides):
        return None
    strides = tuple(stride // size for stride in values.strides)
    layout = Layout(values.shape, strides)
    if layout.size == 0:
        return Array(CpuStorage(np.empty(0, np.uint8)), sh.contiguous(values.shape), dtype)
    low, high = layout.bounds()
    # With all strides made positive, element 0 has the lowest address.
    turned = [slice(None, None, -1 if stride < 0 else 1) for stride in strides]
    lowest = values[tuple(turned)] if turned else values
    run = as_strided(lowest, (high - low,), (size,), writeable=values.flags.writeable)
    return Array(CpuStorage(run.view(np.uint8)), Layout(values.shape, strides, -low), dtype)


def lent(values: NDArray[Any], dtype: Dtype) -> Array:
    """The values cast to a type, in memory that a device will copy."""
    with np.errstate(all="ignore"):
        memory = values.astype(dtype.numpy, copy=False)
    if memory.flags.c_contiguous:
        data = memory.reshape(-1).view(np.uint8)
        return Array(LentStorage(data), sh.contiguous(values.shape), dtype)
    array = shared(memory)
    if array is None:
        return lent(np.ascontiguousarray(memory), dtype)
    return replace(array, storage=LentStorage(array.storage.host()))
