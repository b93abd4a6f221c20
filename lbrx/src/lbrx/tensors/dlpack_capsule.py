"""DLPack's structures and capsules, for memory that numpy cannot describe: that of NVIDIA GPUs."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, Kind
from lbrx.arrays.shape import contiguous_strides
from lbrx.errors import DtypeError

CUDA = 2  # kDLCUDA
READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_VERSION = (1, 0)
_CODES = {Kind.INT: 0, Kind.UINT: 1, Kind.FLOAT: 2, Kind.BOOL: 6}
_BFLOAT = 4
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


class DLTensor(ctypes.Structure):
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
    )


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p))


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    )


_STRUCTURES: dict[bytes, type[Managed] | type[ManagedVersioned]] = {
    _PLAIN: Managed,
    _VERSIONED: ManagedVersioned,
}
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
    ("PyCapsule_New", _api)
)
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)
# A destructor gets a capsule without references, of which no Python object may be made.
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_raw_pointer_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_USED = {name: b"used_" + name for name in _STRUCTURES}  # kept alive: capsules refer to them


@dataclass(frozen=True)
class DeviceMemory:
    """An array in memory of a GPU, as DLPack describes it; strides are in elements."""

    address: int
    gpu: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype


# ---- export -------------------------------------------------------------------------------------

_exported: dict[int, tuple[object, ...]] = {}  # what consumers use, by address of its structure


def _delete(address: int) -> None:
    """Called by the consumer, from any thread."""
    _exported.pop(address, None)


_deleter = _DELETER(_delete)


def _destroy(capsule: int) -> None:
    """A capsule ends: if nobody took what it holds, that is not needed any more."""
    for name in _STRUCTURES:
        if _raw_is_valid(capsule, name):
            _delete(_raw_pointer_of(capsule, name))


_destructor = ctypes.PYFUNCTYPE(None, c_void_p)(_destroy)


def make(memory: DeviceMemory, versioned: bool, keep: object) -> object:
    """A capsule; `keep` lives until its consumer needs the memory no more."""
    structure = ManagedVersioned() if versioned else Managed()
    sides = c_int64 * max(len(memory.shape), 1)
    shape, strides = sides(*memory.shape), sides(*memory.strides)
    code = _BFLOAT if memory.dtype is dt.bfloat16 else _CODES[memory.dtype.kind]
    structure.tensor = DLTensor(
        *(memory.address, CUDA, memory.gpu, len(memory.shape)),
        *(code, 8 * memory.dtype.itemsize, 1, shape, strides, 0),
    )
    structure.deleter = ctypes.cast(_deleter, c_void_p).value
    if isinstance(structure, ManagedVersioned):
        structure.major, structure.minor = _VERSION
        structure.flags = READ_ONLY
    address = ctypes.addressof(structure)
    _exported[address] = (structure, shape, strides, keep)
    name = _VERSIONED if versioned else _PLAIN
    return _new(address, name, ctypes.cast(_destructor, c_void_p).value)


# ---- import -------------------------------------------------------------------------------------


def _give_back(structure: Managed | ManagedVersioned) -> None:
    if structure.deleter:
        _DELETER(structure.deleter)(ctypes.addressof(structure))


def take(capsule: Any) -> tuple[DeviceMemory, object]:
    """The array in a capsule, and what keeps it alive; raises DtypeError."""
    from lbrx.metal.binding import AtDeallocation

    name: bytes | None = _name_of(capsule)
    if name not in _STRUCTURES:
        raise DtypeError(f"a capsule called {name!r} is not DLPack's: it may have been used before")
    structure = _STRUCTURES[name].from_address(_pointer_of(capsule, name))
    _rename(capsule, _USED[name])
    taken = AtDeallocation(_give_back, structure)
    tensor: DLTensor = structure.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
    return DeviceMemory(address, tensor.device_id, shape, strides, dtype), taken


def _dtype(code: int, bits: int, lanes: int) -> Dtype:
    for each in dt.ALL:
        type_code = _BFLOAT if each is dt.bfloat16 else _CODES.get(each.kind)
        if (type_code, 8 * each.itemsize, 1) == (code, bits, lanes):
            return each
    raise DtypeError(
        f"lbrx has no dtype for DLPack's type of code {code} with {bits} bits and {lanes} lanes"
    )
