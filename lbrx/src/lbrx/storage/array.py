"""What holds a tensor's bytes, and the record that devices compute on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lbrx.dtype import Dtype
from lbrx.shape import Layout

Bytes = NDArray[np.uint8]


class Storage(Protocol):
    """A run of bytes somewhere."""

    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> str:
        """The name of the device that can compute on it."""

    @property
    def address(self) -> int:
        """Where the host sees the first byte."""

    def host(self) -> Bytes:
        """The bytes themselves, not a copy, once all work on them is done."""


@runtime_checkable
class Unrealised(Protocol):
    """A storage whose bytes are made when somebody looks at them."""

    def realised(self) -> Storage:
        """What holds them then."""


@dataclass(frozen=True)
class Array:
    """Elements of one type in a storage: what a device is given and gives back."""

    storage: Storage
    layout: Layout
    dtype: Dtype

    def numpy(self) -> NDArray[Any]:
        """The elements as a read-only numpy array over the same memory."""
        # A flag could be reset by the caller; a view of a read-only memoryview stays read-only.
        return self._over(np.asarray(self.storage.host().data.toreadonly()))

    def writable(self) -> NDArray[Any]:
        """The same to be written: only for memory that no tensor shows as a value yet."""
        return self._over(self.storage.host())

    def _over(self, data: Bytes) -> NDArray[Any]:
        layout, size = self.layout, self.dtype.itemsize
        return np.ndarray(
            layout.shape,
            self.dtype.numpy,
            buffer=data,
            offset=layout.offset * size if layout.size else 0,
            strides=[stride * size for stride in layout.strides] if layout.size else None,
        )
