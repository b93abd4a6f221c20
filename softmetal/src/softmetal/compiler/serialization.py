"""Programs as bytes: what `libraryDataContents` gives and the cache keeps."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from softmetal.errors import CompileError
from softmetal.types import CompileOptions, Function, FunctionConstant, Mode, Parameter, Program

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAGIC = b"MTLB"  # the magic of Apple's libraries, which clients look for
_VERSION = b"softmetal-3\n"
_LINKED = MAGIC + b"softmetal-linked-1\n"  # then programs, each after its length
_LENGTH = struct.Struct("<Q")
_LIMIT = 1 << 28
_DAMAGED = (zlib.error, ValueError, KeyError, TypeError, RecursionError)

R = TypeVar("R", bound="DataclassInstance")


def to_bytes(program: Program) -> bytes:
    """A program that another process can load without the source."""
    fields = {
        "text": program.text,
        "source": program.source,
        "options": asdict(program.options),
        "functions": {name: json.dumps(asdict(f)) for name, f in program.functions.items()},
        "constants": [asdict(constant) for constant in program.constants],
    }
    return MAGIC + _VERSION + zlib.compress(json.dumps(fields).encode(), 1)


def link(parts: Sequence[bytes]) -> bytes:
    """Library data of programs that are compiled one by one."""
    if len(parts) == 1:
        return parts[0]
    return _LINKED + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unlinked(data: bytes) -> list[bytes]:
    """The programs in library data, each as `to_bytes` wrote it; raises CompileError."""
    if not data.startswith(_LINKED):
        return [data]
    parts, place = [], len(_LINKED)
    while place < len(data):
        start = place + _LENGTH.size
        if start > len(data):
            raise CompileError("the library data is damaged: it ends within a length")
        place = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if place > len(data):
            raise CompileError("the library data is damaged: it ends within a program")
        parts.append(data[start:place])
    return parts


def from_bytes(data: bytes) -> Program:
    """The program in `data`; raises CompileError if `to_bytes` did not write it."""
    head = MAGIC + _VERSION
    if not data.startswith(head):
        raise CompileError(
            f"not a library of this softmetal: it begins with {bytes(data[:16])!r}, not {head!r}. "
            "Libraries from Apple's compiler hold GPU code; compile the source instead"
        )
    try:
        stream = zlib.decompressobj()
        unpacked = stream.decompress(bytes(data[len(head) :]), _LIMIT)
        if stream.unconsumed_tail:
            raise ValueError(f"it unpacks to more than {_LIMIT:,} bytes")
        fields = _record(json.loads(unpacked))
        return Program(
            text=_text(fields["text"]),
            options=_options(fields["options"]),
            functions=_Functions(_record(fields["functions"])),
            constants=tuple(_made(FunctionConstant, c) for c in _list(fields["constants"])),
            source=_text(fields["source"]),
        )
    except _DAMAGED as error:
        raise CompileError(f"the library data is damaged: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its values nest too deeply"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


class _Functions(Mapping[str, Function]):
    """A program's kernels, each read at its first use: there may be hundreds."""

    def __init__(self, stored: dict[str, str]) -> None:
        self._stored = stored
        self._made: dict[str, Function] = {}

    def __getitem__(self, name: str) -> Function:
        if name not in self._made:
            stored = self._stored[name]
            try:
                self._made[name] = _function(json.loads(_text(stored)))
            except _DAMAGED as error:
                why = _reason(error)
                raise CompileError(f"kernel '{name}' is damaged in the library: {why}") from None
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _options(value: object) -> CompileOptions:
    fields = dict(_record(value))
    macros = tuple((_text(name), _text(text)) for name, text in _list(fields.pop("macros")))
    folders = tuple(map(_text, _list(fields.pop("include_dirs"))))
    return replace(_made(CompileOptions, fields), macros=macros, include_dirs=folders)


def _function(value: object) -> Function:
    fields = dict(_record(value))
    parameters = tuple(_made(Parameter, p) for p in _list(fields.pop("parameters")))
    constants = tuple(map(_text, _list(fields.pop("constants"))))
    mode = Mode(fields.pop("mode"))
    made = {"parameters": parameters, "constants": constants, "mode": mode}
    return Function(**_checked(Function, fields), **made)  # type: ignore[arg-type]


# ---- values of the types that the records have ---------------------------------------------------


def _record(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object is expected, not {type(value).__name__}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list is expected, not {type(value).__name__}")
    return value


def _text(value: object) -> str:
    """Text that can be given to clang and to the cache."""
    if not isinstance(value, str):
        raise TypeError(f"text is expected, not {type(value).__name__}")
    value.encode()  # a lone surrogate is a UnicodeError, which is a ValueError
    if "\0" in value:
        raise ValueError("a text contains a NUL character")
    return value


def _made(record: type[R], value: object) -> R:
    return record(**_checked(record, _record(value)))


def _checked(record: type, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record, if each has the type that the record says."""
    types = {field.name: field.type for field in dataclasses.fields(record)}
    for name, value in given.items():
        if types.get(name, type(value).__name__) != type(value).__name__:
            raise TypeError(f"{name} is {type(value).__name__}, not {types[name]}")
        if isinstance(value, str):
            _text(value)
    return given
