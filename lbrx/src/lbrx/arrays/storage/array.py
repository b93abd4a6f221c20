"""Storage, which holds the bytes of a tensor, and Array, the record that devices compute on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout

Bytes = NDArray[np.uint8]


class Storage(Protocol):
    """A contiguous range of bytes, on the host or on a device."""

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""

    @property
    def device(self) -> str:
        """The name of the device that can compute on it."""

    @property
    def address(self) -> int:
        """The host address of the first byte."""

    def host(self) -> Bytes:
        """The bytes without a copy, after a wait for all work that uses them."""


class Unrealised:
    """A storage whose bytes are computed when they are first read. It is a class, since every
    operation asks for it, and a protocol is asked for by the names of its methods."""

    __slots__ = ()

    def realised(self) -> Storage:
        """Compute the bytes; returns the storage that holds them."""
        raise NotImplementedError


_set = object.__setattr__


@dataclass(frozen=True, init=False)
class Array:
    """Elements of one type in a storage: operand and result of a device."""

    storage: Storage
    layout: Layout
    dtype: Dtype

    # The one that dataclasses make takes longer, and every operation makes arrays.
    def __init__(self, storage: Storage, layout: Layout, dtype: Dtype) -> None:
        _set(self, "storage", storage)
        _set(self, "layout", layout)
        _set(self, "dtype", dtype)

    def numpy(self) -> NDArray[Any]:
        """The elements as a read-only numpy array over the same memory."""
        # A flag could be reset by the caller; a view of a read-only memoryview stays read-only.
        return self._over(np.asarray(self.storage.host().data.toreadonly()))

    def writable(self) -> NDArray[Any]:
        """The same to be written: only for memory that no tensor shows as a value yet."""
        return self._over(self.storage.host())

    def _over(self, data: Bytes) -> NDArray[Any]:
        layout, dtype = self.layout, self.dtype.numpy
        if 0 in layout.shape:
            return np.ndarray(layout.shape, dtype, data)
        size = dtype.itemsize
        strides = [stride * size for stride in layout.strides]
        return np.ndarray(layout.shape, dtype, data, layout.offset * size, strides)
