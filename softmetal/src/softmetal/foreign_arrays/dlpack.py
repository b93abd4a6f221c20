"""DLPack's structures and capsules, for arrays in memory of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any

from softmetal.errors import SoftmetalError
from softmetal.foreign_arrays import element_types
from softmetal.foreign_arrays.element_types import ElementType

HOST = 1  # kDLCPU
_NAME, _USED = b"dltensor", b"used_dltensor"
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _api))
_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_SetName", _api))
# A destructor gets a capsule without references, of which no Python object may be made.
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class _Tensor(ctypes.Structure):
    """DLTensor, and what DLManagedTensor has behind it."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
        ("context", c_void_p),
        ("deleter", c_void_p),
    )


_exported: dict[int, tuple[object, ...]] = {}  # what consumers use, by address of its structure


def _delete(address: int) -> None:
    """Called by the consumer, from any thread."""
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    """A capsule ends: if nobody took what it holds, that is not needed any more."""
    if _raw_is_valid(capsule, _NAME):
        _delete(_raw_pointer(capsule, _NAME))


_deleter = _DELETER(_delete)
_destructor = ctypes.PYFUNCTYPE(None, c_void_p)(_destroy)


def capsule(address: int, shape: Sequence[int], kind: ElementType, owner: object) -> object:
    """A contiguous array; `owner` lives until its consumer needs the memory no more."""
    sides = (c_int64 * max(len(shape), 1))(*shape)
    tensor = _Tensor(address, HOST, 0, len(shape), kind.code, 8 * kind.size, 1, sides)
    tensor.deleter = ctypes.cast(_deleter, c_void_p).value
    place = ctypes.addressof(tensor)
    _exported[place] = (tensor, sides, owner)
    return _new(place, _NAME, ctypes.cast(_destructor, c_void_p).value)


class Taken:
    """The array of a capsule. Its memory is the exporter's until `release`."""

    def __init__(self, exporter: Any) -> None:
        device = exporter.__dlpack_device__()
        if device[0] != HOST:
            raise SoftmetalError(
                f"this {type(exporter).__name__} is in memory of a device: move it to the host"
            )
        taken = exporter.__dlpack__()
        self._tensor = tensor = _Tensor.from_address(_pointer(taken, _NAME))
        _rename(taken, _USED)
        self.address: int = (tensor.data or 0) + tensor.byte_offset
        self.shape: tuple[int, ...] = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
        self._type = (tensor.code, tensor.bits, tensor.lanes)

    @property
    def kind(self) -> ElementType:
        *key, lanes = self._type
        found = element_types.BY_CODE.get((key[0], key[1]))
        if found is None or lanes != 1:
            raise SoftmetalError(
                f"DLPack's type of code {key[0]} with {key[1]} bits is not supported: give "
                "booleans, integers, or floats of 16 or 32 bits"
            )
        return found

    def release(self) -> None:
        if self._tensor.deleter:
            _DELETER(self._tensor.deleter)(ctypes.addressof(self._tensor))
