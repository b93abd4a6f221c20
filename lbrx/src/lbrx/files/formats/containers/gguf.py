"""The reader of GGUF, versions 2 and 3: typed metadata, tensor headers, then aligned tensors.

Arrays of metadata are skipped when a file is opened and decoded when they are used: a vocabulary of
150,000 tokens then takes a few hundredths of a second.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from lbrx.arrays.shape import Shape
from lbrx.errors import FormatError
from lbrx.files.formats.checks import (
    MAX_BYTES,
    MAX_TENSORS,
    bad,
    brief,
    check_blocks,
    check_disjoint,
    checked_shape,
    shown,
)
from lbrx.files.formats.containers.gguf_constants import (
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    F32,
    F64,
    MAGIC,
    MAX_DIMS,
    NUMBERS,
    STRING,
    U32,
    GgufInteger,
)
from lbrx.files.formats.descriptor import (
    ENCODINGS,
    Encoding,
    FileRange,
    Format,
    ModelFiles,
    TensorInfo,
)
from lbrx.quant.gguf import by_id

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_VERSIONS = (2, 3)
_MAX_ALIGNMENT = 1 << 20
_MAX_NESTING = 2
_MAX_PAIRS = 1 << 16
# The fewest bytes of a key with its value, and of a tensor's header.
_LEAST_PAIR = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8
# Sizes, type and offset of a tensor, by its number of dimensions.
_AFTER_DIMS = [struct.Struct(f"<{dims}QIQ") for dims in range(MAX_DIMS + 1)]
_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


_SHOWN = 8  # values of an array that its repr has


class MetadataArray(Sequence[Any]):
    """An array of a file's metadata, decoded at the first use."""

    def __init__(self, kind: int, count: int, data: memoryview) -> None:
        self.kind = kind
        self._count = count
        self.data = data
        """The bytes in the file."""
        self._values: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.values()[index]

    def __iter__(self) -> Iterator[Any]:
        # Iterating does not keep the decoded values: a vocabulary would be in memory twice.
        return iter(self._decoded() if self._values is None else self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.values() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{value!r:.60}" for value in self._decoded(min(self._count, _SHOWN)))
        return f"[{shown}]" if self._count <= _SHOWN else f"[{shown}, ... {self._count:,} values]"

    def values(self) -> list[Any]:
        if self._values is None:
            self._values = self._decoded()
        return self._values

    def _decoded(self, count: int | None = None) -> list[Any]:
        """The values, or the first ones."""
        wanted = self._count if count is None else count
        if self.kind == STRING:
            return _strings(self.data, wanted)
        values: list[Any] = np.frombuffer(self.data, NUMBERS[self.kind], wanted).tolist()
        return [bool(v) for v in values] if self.kind == BOOL else values


def _strings(data: memoryview, count: int) -> list[str]:
    """Strings whose lengths were checked before. Bytes that are not UTF-8 become U+FFFD."""
    raw = data.tobytes()  # slices of bytes are faster than those of a view
    result = []
    at = 0
    for _ in range(count):
        start = at + 8
        at = start + _U64.unpack_from(raw, at)[0]
        result.append(raw[start:at].decode("utf-8", "replace"))
    return result


class Cursor:
    """A position in a file. Raises FormatError instead of reading past the end."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def take(self, nbytes: int, field: str) -> memoryview:
        left = len(self.data) - self.at
        if nbytes > left:
            raise bad(
                self.path,
                f"{nbytes:,} bytes at {self.at:,}, but {left:,} are left: the file is cut short "
                "or its header is wrong",
                field=field,
            )
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def u32(self, field: str) -> int:
        value: int = _U32.unpack(self.take(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack(self.take(8, field))[0]
        return value

    def string(self, field: str) -> str:
        return self.text(self.u64(f"{field} length"), field)

    def text(self, nbytes: int, field: str) -> str:
        try:
            return str(self.take(nbytes, field), "utf-8")
        except UnicodeDecodeError:
            raise bad(self.path, "is not UTF-8", field=field) from None

    def count(self, field: str, least: int, most: int = MAX_BYTES) -> int:
        """A count of items that take at least `least` bytes each."""
        number = self.u64(field)
        left = len(self.data) - self.at
        if number > most:
            raise bad(self.path, f"{number:,} of them, at most {most:,}", field=field)
        if number * least > left:
            raise bad(
                self.path,
                f"{number:,} of them take more than the {left:,} bytes left",
                field=field,
            )
        return number

    def skip_strings(self, count: int, field: str) -> None:
        unpack, data, at = _U64.unpack_from, self.data, self.at
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            at = len(data) + 1
        if at > len(data):
            raise bad(self.path, "a string reaches past the end of the file", field=field)
        self.at = at


def read(path: Path) -> ModelFiles:
    """Describe a file, or all files of a split model when given one of them."""
    first = _read_one(path)
    count = first.metadata.get("split.count", 1)
    if count in (0, 1):
        return first
    return _join(path, first, count)


def _read_one(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < 24:
            raise bad(path, f"has {size} bytes, less than a GGUF header: the file is cut short")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    cursor = Cursor(path, data)
    if cursor.take(4, "magic") != MAGIC:
        raise bad(path, f"{bytes(data[:4])!r} is not {MAGIC!r}", field="magic")
    version = cursor.u32("version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "big-endian files are not read" if swapped in _VERSIONS else "2 and 3 are read"
        raise bad(path, f"{version}: {why}", field="version")
    tensor_count = cursor.count("tensor count", _LEAST_TENSOR, MAX_TENSORS)
    pairs = cursor.count("metadata count", _LEAST_PAIR, _MAX_PAIRS)
    metadata = _read_metadata(cursor, pairs)
    alignment = alignment_of(path, metadata)
    tensors = _read_tensors(cursor, tensor_count, alignment)
    return ModelFiles(path, Format.GGUF, tensors, metadata=metadata)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for number in range(count):
        key = cursor.string(f"metadata key {number}")
        field = f"metadata {shown(key)}"
        if key in result:
            raise bad(cursor.path, "occurs twice", field=field)
        result[key] = _value(cursor, cursor.u32(f"{field} type"), field)
    return result


def _value(cursor: Cursor, kind: int, field: str, depth: int = 0) -> Any:
    if kind == STRING:
        return cursor.string(field)
    if kind == ARRAY:
        return _array(cursor, field, depth)
    dtype = _number_type(cursor, kind, field)
    value = np.frombuffer(cursor.take(dtype.itemsize, field), dtype)[0]
    if kind == BOOL:
        return bool(value)
    if kind == F64:
        return value  # a numpy scalar keeps the width
    plain = value.item()
    return plain if kind in (U32, F32) else GgufInteger.of(kind, plain)


def _number_type(cursor: Cursor, kind: int, field: str) -> np.dtype[Any]:
    if kind not in NUMBERS:
        raise bad(cursor.path, f"{kind} is not a type of metadata", field=f"{field} type")
    return NUMBERS[kind]


def _array(cursor: Cursor, field: str, depth: int) -> Any:
    kind = cursor.u32(f"{field} element type")
    if kind == ARRAY:
        if depth == _MAX_NESTING:
            raise bad(
                cursor.path, f"arrays are nested more than {_MAX_NESTING} levels deep", field=field
            )
        count = cursor.count(f"{field} length", 12, _MAX_PAIRS)
        return [_value(cursor, ARRAY, field, depth + 1) for _ in range(count)]
    least = 8 if kind == STRING else _number_type(cursor, kind, field).itemsize
    count = cursor.count(f"{field} length", least)
    start = cursor.at
    if kind == STRING:
        cursor.skip_strings(count, field)
    else:
        cursor.at += count * least
    return MetadataArray(kind, count, cursor.data[start : cursor.at])


def alignment_of(path: Path, metadata: Mapping[str, Any]) -> int:
    """The number of which tensors' offsets are multiples."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
        raise bad(
            path, f"{brief(value)} is not a power of two", field="metadata 'general.alignment'"
        )
    return value


class _Header(NamedTuple):
    """The header of a tensor. Its offset counts from the start of the first tensor."""

    name: str
    encoding: Encoding
    shape: Shape
    offset: int
    nbytes: int


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    headers: dict[str, _Header] = {}
    for number in range(count):
        name = cursor.string(f"name of tensor {number}")
        if name in headers:
            raise bad(cursor.path, "occurs twice", tensor=name)
        headers[name] = _header(cursor, name, alignment)
    start = -(-cursor.at // alignment) * alignment
    return _placed(cursor.path, headers, start, len(cursor.data))


def _header(cursor: Cursor, name: str, alignment: int) -> _Header:
    path = cursor.path
    dims = cursor.u32(f"dimensions of {shown(name)}")
    if dims > MAX_DIMS:
        raise bad(path, f"{dims} of them, at most {MAX_DIMS}", tensor=name, field="dimensions")
    rest = _AFTER_DIMS[dims]
    *sizes, kind, offset = rest.unpack(cursor.take(rest.size, f"header of {shown(name)}"))
    shape = checked_shape(path, name, reversed(sizes), "shape")
    encoding = _encoding(path, name, kind)
    if offset % alignment:
        raise bad(path, f"{offset} is not a multiple of {alignment}", tensor=name, field="offset")
    return _Header(name, encoding, shape, offset, check_blocks(path, name, encoding, shape))


def _encoding(path: Path, name: str, number: int) -> Encoding:
    try:
        return ENCODINGS[by_id(number).name]
    except FormatError as error:
        raise bad(path, str(error), tensor=name, field="type") from None


def _placed(
    path: Path, headers: Mapping[str, _Header], start: int, size: int
) -> dict[str, TensorInfo]:
    result = {}
    for name, encoding, shape, offset, nbytes in headers.values():
        end = start + offset + nbytes
        if end > size:
            raise bad(
                path,
                f"ends at byte {end:,} of {size:,}: the file is cut short or its header is wrong",
                tensor=name,
                field="offset",
            )
        result[name] = TensorInfo(name, encoding, shape, FileRange(path, start + offset, nbytes))
    check_disjoint(path, result.values())
    return result


def _join(path: Path, one: ModelFiles, count: object) -> ModelFiles:
    """The files of a split model as one."""
    named = _SPLIT_NAME.fullmatch(path.name)
    if not isinstance(count, int) or not named or int(named[3]) != count:
        raise bad(
            path,
            f"{brief(count)} files, but the name is not like name-00001-of-00002.gguf",
            field="metadata 'split.count'",
        )
    tensors: dict[str, TensorInfo] = {}
    head = one
    for number in range(1, count + 1):
        file = path.with_name(f"{named[1]}-{number:05}-of-{count:05}.gguf")
        if not file.exists():
            raise bad(path, f"file {number} of {count}, {file.name}, is missing")
        part = one if file == path else _read_one(file)
        if part.metadata.get("split.no") != number - 1:
            raise bad(file, f"is not {number - 1}", field="metadata 'split.no'")
        if twice := tensors.keys() & part.tensors.keys():
            raise bad(file, "is in an earlier file of the split too", tensor=min(twice))
        tensors |= part.tensors
        head = part if number == 1 else head
    total = head.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        field = "metadata 'split.tensors.count'"
        raise bad(head.path, f"{brief(total)}, but the files have {len(tensors)}", field=field)
    return replace(head, tensors=tensors)
