"""The writer of GGUF, version 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.files.formats.checks import bad, brief, check_blocks, shown
from lbrx.files.formats.containers.gguf import MetadataArray, alignment_of
from lbrx.files.formats.containers.gguf_constants import (
    ARRAY,
    BOOL,
    F32,
    I32,
    I64,
    MAGIC,
    MAX_DIMS,
    MAX_NAME,
    NUMBERS,
    STRING,
    U16,
    U32,
    U64,
    VERSION,
    GgufInteger,
)
from lbrx.files.formats.descriptor import OutgoingInfo
from lbrx.files.formats.layout import FileLayout, Placed
from lbrx.quant.gguf import BY_NAME

# Readers require these types; other integers are U32 where they fit.
_KINDS = {"split.no": U16, "split.count": U16, "split.tensors.count": I32}
_BY_NUMPY = {dtype: kind for kind, dtype in NUMBERS.items() if kind != BOOL}


def layout(path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any]) -> FileLayout:
    """Lay out one file, with the tensors in the given order."""
    alignment = alignment_of(path, metadata)
    offsets = _offsets(tensors, alignment)
    parts = [
        MAGIC,
        *(_number(VERSION, U32), _number(len(tensors), U64), _number(len(metadata), U64)),
        *(_pair(path, key, value) for key, value in metadata.items()),
        *_tensor_headers(path, tensors, offsets),
    ]
    head = b"".join(parts)
    start = _aligned(len(head), alignment)
    placed = [Placed(t, start + offset) for t, offset in zip(tensors, offsets, strict=False)]
    return FileLayout(start + offsets[-1], tuple(placed), lambda _: [(0, head)])


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _offsets(tensors: Sequence[OutgoingInfo], alignment: int) -> list[int]:
    """Offsets of the tensors from the first one, and the end of the last."""
    return list(accumulate((_aligned(t.nbytes, alignment) for t in tensors), initial=0))


def _tensor_headers(
    path: Path, tensors: Sequence[OutgoingInfo], offsets: Sequence[int]
) -> list[bytes]:
    names: set[str] = set()
    result = []
    for tensor, offset in zip(tensors, offsets, strict=False):
        if tensor.name in names:
            raise bad(path, "occurs twice", tensor=tensor.name)
        names.add(tensor.name)
        result.append(_tensor_header(path, tensor, offset))
    return result


def _tensor_header(path: Path, tensor: OutgoingInfo, offset: int) -> bytes:
    kind = BY_NAME.get(tensor.encoding.name)
    if kind is None:
        raise bad(
            path, f"GGUF has no type for {tensor.encoding}: convert it first", tensor=tensor.name
        )
    if len(tensor.shape) > MAX_DIMS:
        problem = f"shape {tensor.shape} has more than GGUF's {MAX_DIMS} dimensions"
        raise bad(path, problem, tensor=tensor.name)
    if len(tensor.name.encode()) > MAX_NAME:
        raise bad(path, f"GGUF's names have at most {MAX_NAME} bytes", tensor=tensor.name)
    check_blocks(path, tensor.name, tensor.encoding, tensor.shape)
    sizes = np.array(tensor.shape[::-1], "<u8").tobytes()
    dims, number = _number(len(tensor.shape), U32), _number(kind.id, U32)
    return _string(tensor.name) + dims + sizes + number + _number(offset, U64)


def _pair(path: Path, key: str, value: Any) -> bytes:
    field = f"metadata {shown(key)}"
    if isinstance(value, str):
        return _string(key) + _number(STRING, U32) + _string(value)
    if isinstance(value, (Sequence, np.ndarray)):
        return _string(key) + _number(ARRAY, U32) + _array(path, field, value)
    kind = _KINDS.get(key) or _kind_of(path, field, value)
    return _string(key) + _number(kind, U32) + _checked(path, field, value, kind)


def _kind_of(path: Path, field: str, value: object) -> int:
    match value:
        case bool() | np.bool_():
            return BOOL
        case GgufInteger():
            return value.kind
        case np.generic() if value.dtype in _BY_NUMPY:
            return _BY_NUMPY[value.dtype]
        case int() if 0 <= value < 1 << 32:
            return U32
        case int() if -(1 << 31) <= value < 0:
            return I32
        case int() if -(1 << 63) <= value < 1 << 64:
            return I64 if value < 0 else U64
        case int():
            raise bad(path, f"{brief(value)} does not fit 64 bits", field=field)
        case float():
            return F32
    kind = type(value).__name__
    problem = f"GGUF does not store values of type {kind}: give text, numbers, booleans or lists"
    raise bad(path, problem, field=field)


def _array(path: Path, field: str, values: Sequence[Any] | np.ndarray[Any, Any]) -> bytes:
    """Element type, length, elements. Integers are I32 where they fit, as readers expect."""
    count = _number(len(values), U64)
    if isinstance(values, MetadataArray):
        return _number(values.kind, U32) + count + bytes(values.data)
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype in _BY_NUMPY:
        return _number(_BY_NUMPY[values.dtype], U32) + count + values.tobytes()
    items = list(values)
    if all(isinstance(item, str) for item in items):
        kind = STRING
    elif all(isinstance(item, (list, tuple, np.ndarray, MetadataArray)) for item in items):
        nested = b"".join(_array(path, field, item) for item in items)
        return _number(ARRAY, U32) + count + nested
    else:
        kind = _common_kind(path, field, items)
    if kind == STRING:
        return _number(STRING, U32) + count + b"".join(map(_string, items))
    return _number(kind, U32) + count + _checked(path, field, items, kind)


def _common_kind(path: Path, field: str, items: list[Any]) -> int:
    kinds = {_kind_of(path, field, item) for item in items}
    if kinds <= {U32, I32}:
        return U32 if max(items) >= 1 << 31 else I32
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= {U32, I32, U64, I64}:
        return U64 if min(items) >= 0 else I64
    if kinds <= {U32, I32, F32}:
        return F32
    raise bad(path, "the values are not all of one type", field=field)


def _checked(path: Path, field: str, value: Any, kind: int) -> bytes:
    """One number or several as bytes. Raises FormatError if the type cannot hold one of them."""
    try:
        with np.errstate(over="raise"):
            return _number(value, kind)
    except (OverflowError, FloatingPointError, TypeError, ValueError):
        problem = f"{brief(value)} does not fit {NUMBERS[kind].name}"
        raise bad(path, problem, field=field) from None


def _number(value: Any, kind: int) -> bytes:
    return np.array(value, NUMBERS[kind]).tobytes()


def _string(text: str) -> bytes:
    # Surrogates stand for bytes that were not UTF-8 where the text was read.
    data = text.encode("utf-8", "surrogateescape")
    return len(data).to_bytes(8, "little") + data
