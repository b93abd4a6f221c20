"""DLPack, through numpy's. numpy has no bfloat16 there: it crosses as uint16, relabelled."""

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
# Where DLDataType.code is: DLTensor has data (8 bytes), device (8) and ndim (4) before its dtype;
# the versioned struct has version (8), context (8), deleter (8) and flags (8) before its DLTensor.
_CODE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}

_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Exporter(Protocol):
    def __dlpack__(self, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


def _relabel(capsule: object, old: int, new: int) -> bool:
    """Change a capsule's type code; False where it has another."""
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
    values = array.numpy() if versioned or kwargs.get("copy") else array.writable()
    if array.dtype is not dt.bfloat16:
        return values.__dlpack__(**kwargs)
    capsule = values.view(np.uint16).__dlpack__(**kwargs)
    _relabel(capsule, _UINT, _BFLOAT)
    return capsule


class _Relabelled:
    """An exporter whose bfloat16 appears as uint16; it remembers whether that happened."""

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
    """A numpy array over the memory of another library's tensor."""
    relabelled = _Relabelled(source)
    array: NDArray[Any] = np.from_dlpack(relabelled)
    return array.view(ml_dtypes.bfloat16) if relabelled.is_bfloat else array
