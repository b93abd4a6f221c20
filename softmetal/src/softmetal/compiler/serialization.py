"""Programs as bytes: what `libraryDataContents` gives and the cache keeps."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from softmetal.errors import CompileError
from softmetal.types import CompileOptions, Function, FunctionConstant, Mode, Parameter, Program

MAGIC = b"MTLB"  # the magic of Apple's libraries, which clients look for
_VERSION = b"softmetal-3\n"
_LIMIT = 1 << 30


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


def from_bytes(data: bytes) -> Program:
    """The program in `data`; raises CompileError if `to_bytes` did not write it."""
    head = MAGIC + _VERSION
    if not data.startswith(head):
        raise CompileError(
            f"not a library of this softmetal: it begins with {bytes(data[:16])!r}, not {head!r}. "
            "Libraries from Apple's compiler hold GPU code; compile the source instead"
        )
    try:
        unpacked = zlib.decompressobj().decompress(bytes(data[len(head) :]), _LIMIT)
        fields = json.loads(unpacked)
        return Program(
            text=fields["text"],
            options=_options(fields["options"]),
            functions=_Functions(dict(fields["functions"])),
            constants=tuple(FunctionConstant(**c) for c in fields["constants"]),
            source=fields["source"],
        )
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise CompileError(f"the library data is damaged: {error}") from error


class _Functions(Mapping[str, Function]):
    """A program's kernels, each read at its first use: there may be hundreds."""

    def __init__(self, stored: dict[str, str]) -> None:
        self._stored = stored
        self._made: dict[str, Function] = {}

    def __getitem__(self, name: str) -> Function:
        if name not in self._made:
            text = self._stored[name]
            try:
                self._made[name] = _function(json.loads(text))
            except (ValueError, KeyError, TypeError) as error:
                raise CompileError(f"kernel '{name}' is damaged in the library: {error}") from error
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _options(fields: dict[str, Any]) -> CompileOptions:
    fields = dict(fields)
    macros = tuple((str(name), str(value)) for name, value in fields.pop("macros"))
    folders = tuple(map(str, fields.pop("include_dirs")))
    return CompileOptions(macros=macros, include_dirs=folders, **fields)


def _function(fields: dict[str, Any]) -> Function:
    fields = dict(fields)
    parameters = tuple(Parameter(**p) for p in fields.pop("parameters"))
    constants = tuple(map(str, fields.pop("constants")))
    mode = Mode(int(fields.pop("mode")))
    return Function(parameters=parameters, constants=constants, mode=mode, **fields)
