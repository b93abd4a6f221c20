"""DLPack exchange through numpy's implementation.

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

from lbrx import dtype as dt
from lbrx.storage import Array

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


def export(array: Array, kwargs: dict[str, Any]) -> object:
    """A capsule over the array's memory, marked as read-only where the protocol can say so."""
    version = kwargs.get("max_version")
    versioned = version is not None and version[0] >= 1
    # Without a version numpy refuses to export a read-only array.
    values = array.numpy() if versioned or kwargs.get("copy") else _writable(array)
    if array.dtype is not dt.bfloat16:
        return values.__dlpack__(**kwargs)
    capsule = values.view(np.uint16).__dlpack__(**kwargs)
    _relabel(capsule, _UINT, _BFLOAT)
    return capsule


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


def import_array(source: Exporter) -> NDArray[Any]:
    """A numpy array over the memory of another library's array, which must be on the host."""
    relabelled = _Relabelled(source)
    array: NDArray[Any] = np.from_dlpack(relabelled)
    return array.view(ml_dtypes.bfloat16) if relabelled.is_bfloat else array
