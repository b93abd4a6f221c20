"""Bytes that are computed when they are first read."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays.dtype import float32
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage.array import Array, Bytes


class LazyStorage:
    """Host memory that a function fills at the first access."""

    device = "cpu"

    def __init__(self, nbytes: int, make: Callable[[], NDArray[Any]]) -> None:
        self._nbytes = nbytes
        self._make: Callable[[], NDArray[Any]] | None = make
        self._data: Bytes | None = None
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the storage once it is made."""
        return self._nbytes

    @property
    def is_made(self) -> bool:
        """Whether the bytes exist already."""
        return self._data is not None

    @property
    def address(self) -> int:
        """The address of the first byte; makes the bytes."""
        return self.host().ctypes.data

    def host(self) -> Bytes:
        """The bytes, made at the first call."""
        with self._lock:
            if self._data is None:
                assert self._make is not None
                contents = np.ascontiguousarray(self._make()).reshape(-1).view(np.uint8)
                assert contents.nbytes == self._nbytes
                self._data, self._make = contents, None
            return self._data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._nbytes} bytes>"


class PackedStorage(LazyStorage):
    """Quantized values. The host sees them decoded to float32; kernels take the stored `parts`:
    `data`, and scales or offsets where the scheme has them. All parts have the leading axes of the
    values and lie on one device, which is the device of the values."""

    def __init__(
        self,
        scheme: str,
        parts: Mapping[str, Array],
        shape: Shape,
        decode: Callable[[], NDArray[Any]],
    ) -> None:
        super().__init__(math.prod(shape) * float32.itemsize, decode)
        self.scheme = scheme
        self.parts = dict(parts)
        self.device = self.parts["data"].storage.device
        self.shape = shape
