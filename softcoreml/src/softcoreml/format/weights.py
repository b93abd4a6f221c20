"""Weight files (`weight.bin`), mapped into memory: arrays are views of the mapping.

The file is a header of 64 bytes, then blobs: a record of 64 bytes that describes the data, and the
data. A program names the offset of the record.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from softcoreml import mil
from softcoreml.errors import ModelError, UnreadableModel
from softcoreml.format.packing import unpack

SENTINEL = 0xDEADBEEF
_RECORD = struct.Struct("<IIQQQ")
_CODES = {
    1: "fp16",
    2: "fp32",
    3: "uint8",
    4: "int8",
    5: "bf16",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
    16: "fp8e4m3fn",
    17: "fp8e5m2",
}
_SAME_BYTES = {"bool": "uint8"}


class Weights(Protocol):
    """Where a program's blobs come from."""

    def array(self, kind: mil.TensorType, blob: mil.Blob) -> np.ndarray[Any, Any]:
        """The values of a blob, which must be of this type."""


class WeightFile:
    """One weight file: a path, which is mapped, or bytes that are in memory already."""

    def __init__(self, source: Path | bytes | memoryview) -> None:
        self.name = str(source) if isinstance(source, Path) else "the weights in memory"
        if isinstance(source, Path):
            self._bytes = _mapped(source)
        else:
            self._bytes = np.frombuffer(source, np.uint8)
            self._bytes.flags.writeable = False

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def array(self, kind: mil.TensorType, offset: int) -> np.ndarray[Any, Any]:
        """The tensor whose record is at `offset`: a view, or a copy for values under a byte."""
        stored, at, size = self._record(offset)
        if stored != _SAME_BYTES.get(kind.dtype, kind.dtype):
            raise ModelError(f"{self.name}: {stored} at offset {offset} instead of {kind.dtype}")
        count = kind.count
        if count is None or kind.dims is None or size != kind.nbytes:
            raise ModelError(
                f"{self.name}: {size} bytes at offset {offset} where {kind} needs {kind.nbytes}"
            )
        data = self._bytes[at : at + size]
        shape = [length or 0 for length in kind.dims]
        if kind.dtype in mil.SUB_BYTE_BITS:
            return unpack(data, kind.dtype, count).reshape(shape)
        return data.view(mil.DTYPES[kind.dtype]).reshape(shape)

    def _record(self, offset: int) -> tuple[str, int, int]:
        """Type, position and length of the data of the record at `offset`, checked."""
        if offset + 64 > len(self._bytes):
            raise ModelError(f"{self.name}: no record at offset {offset} of {len(self._bytes)}")
        fields = _RECORD.unpack_from(self._bytes[offset : offset + 64].tobytes())
        sentinel, code, size, at, _padding = fields
        if sentinel != SENTINEL:
            raise ModelError(f"{self.name}: no record begins at offset {offset}")
        if code not in _CODES:
            raise ModelError(f"{self.name}: unknown data type {code} at offset {offset}")
        if at > len(self._bytes) or size > len(self._bytes) - at:
            raise ModelError(
                f"{self.name}: the record at offset {offset} names {size} bytes at {at}, "
                f"and the file has {len(self._bytes)}"
            )
        return _CODES[code], at, size


def _mapped(path: Path) -> np.ndarray[Any, Any]:
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return np.zeros(0, np.uint8)
            # The array keeps the mapping, which keeps the file's content after a deletion.
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as problem:
        raise UnreadableModel(f"cannot read the weights {path}: {problem}") from None


def relative_path(name: str) -> Path:
    """Where a weight file is in a model's folder, from its name in a program."""
    relative = Path(name.removeprefix("@model_path/"))
    if relative.is_absolute() or ".." in relative.parts:
        raise ModelError(f"the weights {name!r} are outside the model's folder")
    return relative


class FolderWeights:
    """The weight files of a model's folder; `@model_path` in a name stands for that folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, WeightFile] = {}

    def array(self, kind: mil.TensorType, blob: mil.Blob) -> np.ndarray[Any, Any]:
        if blob.file not in self._files:
            self._files[blob.file] = WeightFile(self._path(blob.file))
        return self._files[blob.file].array(kind, blob.offset)

    def _path(self, name: str) -> Path:
        # Links are followed: model caches link weights to a shared store.
        return self._folder / relative_path(name)


class MemoryWeights:
    """Weight files by name in memory, as `MLModelAsset` gives them."""

    def __init__(self, files: Mapping[str, bytes | memoryview]) -> None:
        self._files = {_relative(name): WeightFile(data) for name, data in files.items()}

    def array(self, kind: mil.TensorType, blob: mil.Blob) -> np.ndarray[Any, Any]:
        file = self._files.get(_relative(blob.file))
        if file is None:
            known = ", ".join(self._files) or "none"
            raise ModelError(f"the program needs the weights {blob.file!r}: given are {known}")
        return file.array(kind, blob.offset)


def _relative(name: str) -> str:
    return name.removeprefix("@model_path/").lstrip("/")
