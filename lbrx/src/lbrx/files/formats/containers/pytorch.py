"""PyTorch's .bin, .pt and .pth: zip files with a pickle and one member for each storage."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lbrx.arrays.shape import Shape, contiguous_strides
from lbrx.files.formats.checks import MAX_BYTES, bad, brief, check_name, checked_shape, shown
from lbrx.files.formats.containers.pickle_machine import (
    MAX_PICKLE,
    PickledCall,
    PickledName,
    PickledReference,
    PickleMachine,
)
from lbrx.files.formats.containers.zip_archive import ZipMember, members
from lbrx.files.formats.descriptor import (
    ENCODINGS,
    Encoding,
    FileRange,
    Format,
    ModelFiles,
    TensorInfo,
)

_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
_UNTYPED = "UntypedStorage"
_REBUILD = "torch._utils"
_TENSORS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
_ALLOWED = {
    "collections": {"OrderedDict"},
    _REBUILD: {*_TENSORS, *_PARAMETERS},
    "torch": {*_STORAGES, *_DTYPES, "Size", "device", "strided", "Tensor", _UNTYPED},
    "torch.storage": {_UNTYPED, "TypedStorage"},
    "torch.nn.parameter": {"Parameter"},
    "torch.serialization": {"_get_layout"},
}
_MAX_DEPTH = 64
_MAX_DEFLATED = 1 << 20  # bytes of a compressed pickle; PyTorch does not compress
_MAX_NAME = 1000


def read(path: Path) -> ModelFiles:
    """Describe every tensor of a file. Nested dictionaries and lists give dotted names; a single
    tensor has the name of the file."""
    content = members(path)
    pickled = _only(path, [m for n, m in content.items() if n.rpartition("/")[2] == "data.pkl"])
    prefix = pickled.name.removesuffix("data.pkl")
    order = content.get(f"{prefix}byteorder")
    if order and order.content() != b"little":
        raise bad(path, "is not little-endian", field="byteorder")
    if pickled.nbytes > MAX_PICKLE:
        raise bad(path, f"{pickled.nbytes:,} bytes, at most {MAX_PICKLE:,}", field="data.pkl")
    if pickled.is_deflated and pickled.nbytes > _MAX_DEFLATED:
        problem = f"{pickled.nbytes:,} bytes, at most {_MAX_DEFLATED:,} if compressed"
        raise bad(path, problem, field="data.pkl")
    root = PickleMachine(path, _is_allowed).run(pickled.content())
    storages = {name.removeprefix(f"{prefix}data/"): member for name, member in content.items()}
    tensors: dict[str, TensorInfo] = {}
    for name, call in _walk(path, root):
        check_name(path, name)
        if name in tensors:
            raise bad(path, "occurs twice", tensor=name)
        tensors[name] = _tensor(path, name or path.stem, call, storages)
    return ModelFiles(path, Format.PYTORCH, {info.name: info for info in tensors.values()})


def _is_allowed(name: PickledName) -> bool:
    return name.name in _ALLOWED.get(name.module, ())


def _only(path: Path, found: list[ZipMember]) -> ZipMember:
    if len(found) != 1:
        raise bad(path, f"has {len(found)} members data.pkl, not one")
    return found[0]


def _walk(path: Path, root: object) -> Iterator[tuple[str, PickledCall]]:
    """Tensors by name. A container that occurs several times counts at its first place."""
    seen: set[int] = set()
    pending: list[tuple[str, object, int]] = [("", root, 0)]
    while pending:
        name, value, depth = pending.pop()
        if isinstance(value, PickledCall):
            if (call := _unwrapped(value)) is not None:
                yield name, call
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            if depth == _MAX_DEPTH:
                raise bad(path, f"{shown(name)} is nested more than {_MAX_DEPTH} levels deep")
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            if len(name) > _MAX_NAME:
                raise bad(path, f"the name {shown(name)} has more than {_MAX_NAME} characters")
            start = f"{name}." if name else ""
            inner = [(start + _key(key), item, depth + 1) for key, item in items]
            pending.extend(reversed(inner))


def _key(key: object) -> str:
    return key if isinstance(key, str) else brief(key)


def _unwrapped(call: PickledCall) -> PickledCall | None:
    """The tensor that a parameter wraps; None if it is not a tensor."""
    inner: object = call
    while isinstance(inner, PickledCall) and inner.name.name in _PARAMETERS:
        inner = inner.arguments[0] if inner.arguments else None
    return inner if isinstance(inner, PickledCall) and inner.name.name in _TENSORS else None


def _tensor(path: Path, name: str, call: PickledCall, storages: dict[str, ZipMember]) -> TensorInfo:
    try:
        storage, offset, sizes, steps = call.arguments[:4]
        kind, storage_name, key, *_ = storage.value
        dtype = call.arguments[6] if call.name.name == "_rebuild_tensor_v3" else None
        is_right = isinstance(storage, PickledReference) and kind == "storage"
    except (ValueError, AttributeError, TypeError, IndexError):
        is_right = False
    if not is_right:
        raise bad(path, "is not built as torch builds tensors", tensor=name, field="pickle")
    encoding = _encoding(path, name, storage_name, dtype)
    shape = checked_shape(path, name, _sequence(path, name, sizes), "size")
    strides = checked_shape(path, name, _sequence(path, name, steps), "stride")
    member = storages.get(key) if isinstance(key, str) else None
    if member is None or member.is_deflated:
        problem = f"{brief(key)} is missing or compressed"
        raise bad(path, problem, tensor=name, field="storage")
    place = (offset, encoding, shape, strides)
    return TensorInfo(name, encoding, shape, *_place(path, name, member, *place))


def _sequence(path: Path, name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, PickledCall) and value.name.name == "Size" and len(value.arguments) == 1:
        value = value.arguments[0]
    if not isinstance(value, (tuple, list)):
        raise bad(path, "is not a sequence of sizes", tensor=name, field="size")
    return tuple(value)


def _encoding(path: Path, name: str, storage: object, dtype: object) -> Encoding:
    known = _DTYPES.get(dtype.name) if isinstance(dtype, PickledName) else None
    if known is None and isinstance(storage, PickledName):
        known = _STORAGES.get(storage.name)
    if known is None:
        raise bad(path, "has a type that lbrx does not read", tensor=name, field="storage")
    return ENCODINGS[known]


def _place(
    path: Path,
    name: str,
    member: ZipMember,
    offset: Any,
    encoding: Encoding,
    shape: Shape,
    strides: Shape,
) -> tuple[FileRange, Shape | None]:
    """The range of a view of a storage, and its strides if it is not contiguous."""
    if type(offset) is not int or not 0 <= offset <= MAX_BYTES or len(strides) != len(shape):
        raise bad(path, f"{brief(offset)} does not fit", tensor=name, field="storage offset")
    available = member.nbytes // encoding.nbytes
    is_empty = 0 in shape
    reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    if not is_empty and offset + reach > available:
        problem = f"reaches element {offset + reach:,} of a storage of {available:,}"
        raise bad(path, problem, tensor=name, field="size")
    dense = contiguous_strides(shape)
    is_dense = is_empty or all(
        n == 1 or a == b for n, a, b in zip(shape, strides, dense, strict=True)
    )
    if math.prod(shape) > available:
        raise bad(path, "repeats elements: save a contiguous copy", tensor=name, field="stride")
    start = member.offset + (0 if is_empty else offset * encoding.nbytes)
    nbytes = 0 if is_empty else reach * encoding.nbytes
    return FileRange(path, start, nbytes), None if is_dense else strides
