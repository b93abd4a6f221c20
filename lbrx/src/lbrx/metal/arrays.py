"""Arrays in a device's memory: allocated, shared with the host, or copied from it."""

from __future__ import annotations

import math

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, LentStorage, MetalStorage
from lbrx.metal.context import Context
from lbrx.ops import Spec

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
