"""Arrays as kernels take them: their buffers, names of kernels by dtypes, and classes of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array, MetalStorage, Storage
from lbrx.metal import Buffer

KernelArguments = Sequence[Buffer | bytes]


def whole_buffer(array: Array) -> Buffer:
    """The buffer of its storage; element 0 is `layout.offset` elements into it."""
    return storage_buffer(array.storage)


def storage_buffer(storage: Storage) -> Buffer:
    """The bytes of a storage on the device."""
    assert isinstance(storage, MetalStorage)
    buffer = storage.buffer
    assert isinstance(buffer, Buffer)
    if storage.offset == 0 and storage.nbytes == buffer.size:
        return buffer
    return buffer.slice(storage.offset, storage.nbytes)


def buffer_of(array: Array) -> Buffer:
    """The bytes from element 0 on: for arrays without negative strides."""
    skipped = array.layout.offset * array.dtype.itemsize
    buffer = whole_buffer(array)
    return buffer.slice(skipped, buffer.size - skipped) if skipped else buffer


def extent_of(array: Array) -> Buffer:
    """The bytes from element 0 to the last one that the array shows."""
    buffer, layout = buffer_of(array), array.layout
    size = (layout.bounds()[1] - layout.offset) * array.dtype.itemsize
    return buffer if size == buffer.size else buffer.slice(0, size)


def reshaped(array: Array, *shape: int) -> Array:
    """A contiguous array in another shape, over the same memory."""
    layout = sh.reshape(array.layout, shape)
    assert layout is not None
    return Array(array.storage, layout, array.dtype)


def kernel_name(op: str, variant: str, *dtypes: Dtype) -> str:
    """The name of a kernel function, such as `softmax_serial_float32`."""
    return _joined((op, variant, *(dtype.name for dtype in dtypes)))


@cache
def _joined(parts: tuple[str, ...]) -> str:
    return "_".join(part for part in parts if part)


def size_class(*sizes: int) -> str:
    """Sizes rounded up to powers of two, as part of a shape class."""
    return "x".join(str(1 << max(n - 1, 0).bit_length()) for n in sizes)
