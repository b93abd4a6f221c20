"""DLPack exchange: host memory through numpy's implementation, and memory of NVIDIA GPUs.

numpy does not support bfloat16 in DLPack, so such arrays pass through numpy as uint16 and the type
code in the capsule is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array, MetalStorage, PackedStorage, wait_for
from lbrx.errors import DeviceError
from lbrx.tensors import dlpack_capsule
from lbrx.tensors.dlpack_capsule import CUDA, DeviceMemory

HOST = (1, 0)  # kDLCPU
_ALIGNMENT = 256  # bytes: kernels rely on where buffers begin
_UINT, _BFLOAT = 1, 4
# Byte offset of DLDataType.code: DLTensor has data (8 bytes), device (8) and ndim (4) before its
# dtype; the versioned struct has version, context, deleter and flags (8 each) before its DLTensor.
_CODE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}

_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Exporter(Protocol):
    """An array of a library that supports DLPack."""

    def __dlpack__(self, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


def _relabel(capsule: object, old: int, new: int) -> bool:
    """Change a capsule's type code from `old` to `new`; False if it has another code."""
    name = _get_name(capsule)
    address = _get_pointer(capsule, name)
    code = ctypes.c_uint8.from_address(address + _CODE_OFFSETS[name])
    if code.value != old:
        return False
    code.value = new
    return True


def device_of(array: Array) -> tuple[int, int]:
    """DLPack's device of an array: the NVIDIA GPU whose memory it is in, else the host."""
    from lbrx.metal import context

    storage = array.storage
    if storage.device != "metal" or isinstance(storage, PackedStorage):
        return HOST
    gpu = context().info.cuda
    return HOST if gpu is None else (CUDA, gpu)


def export(array: Array, kwargs: dict[str, Any]) -> object:
    """A capsule over the array's memory, marked as read-only where the protocol can say so.

    A view with negative strides is copied, unless copy=False forbids it: DLPack allows them, but
    PyTorch ends the process when it reads one.
    """
    if kwargs.get("copy") is None and min(array.layout.strides, default=0) < 0:
        kwargs = {**kwargs, "copy": True}
    version = kwargs.get("max_version")
    versioned = version is not None and version[0] >= 1
    if device_of(array) != HOST:
        if kwargs.get("dl_device") in (None, device_of(array)):
            return _export_cuda(array, versioned, kwargs)
        kwargs = {**kwargs, "stream": None}
    # Without a version numpy refuses to export a read-only array.
    values = array.numpy() if versioned or kwargs.get("copy") else _writable(array)
    if array.dtype is not dt.bfloat16:
        return values.__dlpack__(**kwargs)
    capsule = values.view(np.uint16).__dlpack__(**kwargs)
    _relabel(capsule, _UINT, _BFLOAT)
    return capsule


def _export_cuda(array: Array, versioned: bool, kwargs: dict[str, Any]) -> object:
    """Over memory of the GPU. The work that computes it has ended, whichever stream the consumer
    uses, unless stream=-1 asks for no synchronisation."""
    from lbrx.metal import context

    stream = kwargs.get("stream")
    if stream == 0:
        raise ValueError("stream=0 is ambiguous on CUDA: give 1 for the legacy default stream")
    if kwargs.get("copy"):
        array = _copied(array)
    address = array.storage.address
    if stream == -1:
        context().queue.commit()
    else:
        wait_for(array.storage)
    layout, gpu = array.layout, context().info.cuda
    assert gpu is not None
    start = address + layout.offset * array.dtype.itemsize
    memory = DeviceMemory(start, gpu, layout.shape, layout.strides, array.dtype)
    return dlpack_capsule.make(memory, versioned, array)


def _copied(array: Array) -> Array:
    from lbrx.ops import TABLE
    from lbrx.tensors import placement

    return placement.get("metal").run(TABLE["copy"], [array], {})[0]


def _writable(array: Array) -> NDArray[Any]:
    values = array.writable()
    return values if values.flags.writeable else values.copy()


class _Relabelled:
    """An exporter that presents bfloat16 as uint16; `is_bfloat` says whether it did."""

    def __init__(self, source: Exporter) -> None:
        self._dlpack: Callable[..., Any] = source.__dlpack__
        self._device = source.__dlpack_device__
        self.is_bfloat = False

    def __dlpack__(self, **kwargs: Any) -> Any:
        capsule = self._dlpack(**kwargs)
        self.is_bfloat = _relabel(capsule, _BFLOAT, _UINT)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device()


def import_cuda(source: Exporter) -> Array | None:
    """An array over memory of the GPU that lbrx computes on, whose commands wait for the stream
    that computes it; None if the source is not on an NVIDIA GPU.

    Raises DeviceError if it is on another one.
    """
    kind, gpu = source.__dlpack_device__()
    if kind != CUDA:
        return None
    from lbrx.metal import context

    device = context()
    if device.info.cuda != gpu:
        raise DeviceError(
            f"this {type(source).__name__} is on GPU {gpu}, and lbrx computes on "
            f"{device.info.name}: set SOFTMETAL_DEVICE=cuda:{gpu}, or move it to the host"
        )
    stream = device.queue.cuda_stream()
    try:
        capsule = source.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a library from before DLPack 1.0
        capsule = source.__dlpack__(stream=stream)
    memory, owner = dlpack_capsule.take(capsule)
    low, high = Layout(memory.shape, memory.strides).bounds()
    size = memory.dtype.itemsize
    first = memory.address + low * size
    begin = first // _ALIGNMENT * _ALIGNMENT
    nbytes = max(first + (high - low) * size - begin, 1)
    empty = 0 in memory.shape  # its address may be anything
    buffer = device.buffer(nbytes) if empty else device.over(begin, nbytes, owner)
    storage = MetalStorage(buffer, 0, nbytes)
    return Array(storage, Layout(memory.shape, memory.strides, (memory.address - begin) // size),
                 memory.dtype)  # fmt: skip


def import_array(source: Exporter) -> NDArray[Any]:
    """A numpy array over the memory of another library's array, which must be on the host."""
    relabelled = _Relabelled(source)
    array: NDArray[Any] = np.from_dlpack(relabelled)
    return array.view(ml_dtypes.bfloat16) if relabelled.is_bfloat else array
