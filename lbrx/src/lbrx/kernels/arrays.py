"""Arrays on the device: allocation, upload, and conversion to kernel arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.metal import Buffer, Context
from lbrx.ops import Spec
from lbrx.storage import Array, LentStorage, MetalStorage, Storage

KernelArguments = Sequence[Buffer | bytes]

# Below this many bytes a copy costs less than a buffer over the host's memory.
SHARE_FROM = 64 << 10


def empty(gpu: Context, spec: Spec, label: str = "tensors") -> Array:
    """A contiguous array with uninitialised elements."""
    nbytes = math.prod(spec.shape) * spec.dtype.itemsize
    buffer = gpu.buffer(nbytes, label)
    return Array(MetalStorage(buffer, 0, nbytes), sh.contiguous(spec.shape), spec.dtype)


def long_lived(gpu: Context, spec: Spec, label: str) -> Array:
    """A contiguous array with uninitialised elements, in memory of a heap."""
    nbytes = math.prod(spec.shape) * spec.dtype.itemsize
    buffer = gpu.heap_buffer(nbytes, label)
    return Array(MetalStorage(buffer, 0, nbytes), sh.contiguous(spec.shape), spec.dtype)


def shared(gpu: Context, array: Array) -> Array | None:
    """A host array on the device, sharing its memory; None if Metal cannot use that memory, or it
    has bools that are neither 0 nor 1, as numpy allows: kernels would compute with these bytes."""
    data = array.storage.host()
    if data.size == 0 or data.ctypes.data % array.dtype.itemsize:
        return None
    if array.dtype is dt.bool_ and data.max() > 1:
        return None
    buffer = gpu.share(data)
    if buffer is None:
        return None
    return Array(MetalStorage(buffer, 0, data.nbytes), array.layout, array.dtype)


def imported(gpu: Context, array: Array) -> Array:
    """A host array on the device: sharing its memory if Metal can use it, else a copy."""
    same = shared(gpu, array) if may_share(array) else None
    if same is not None:
        return same
    values = array.numpy()
    if array.dtype is dt.bool_:
        values = values.view(np.uint8) != 0
    storage = MetalStorage(gpu.upload(values, "tensors"), 0, values.nbytes)
    return Array(storage, sh.contiguous(array.layout.shape), array.dtype)


def may_share(array: Array) -> bool:
    """Whether a tensor may use an array's memory, and a copy would cost more than a buffer."""
    return not isinstance(array.storage, LentStorage) and array.storage.nbytes >= SHARE_FROM


def placed(gpu: Context, array: Array) -> Array:
    """The array itself, or a copy on the device if it is a host scalar."""
    return array if array.storage.device == "metal" else imported(gpu, array)


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


def accumulator(dtype: Dtype) -> Dtype:
    """The type that kernels compute in: float32 for float16 and bfloat16, else the dtype itself."""
    return dt.float32 if dtype in (dt.float16, dt.bfloat16) else dtype


def size_class(*sizes: int) -> str:
    """Sizes rounded up to powers of two, as part of a shape class."""
    return "x".join(str(1 << max(n - 1, 0).bit_length()) for n in sizes)
