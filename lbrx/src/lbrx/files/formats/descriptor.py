"""The records that all formats share: descriptions of tensors and of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.quant.gguf import TYPES


class Format(StrEnum):
    """The names of the formats in this package; `file_formats.register` adds others."""

    SAFETENSORS = "safetensors"
    MLX = "mlx"
    GGUF = "gguf"
    PYTORCH = "pytorch"
    NPZ = "npz"
    NPY = "npy"
    ONNX = "onnx"


@dataclass(frozen=True)
class Encoding:
    """How elements are stored: as a `dtype` of lbrx, or as blocks that decode to float32."""

    name: str
    dtype: Dtype | None
    elements: int
    nbytes: int

    @property
    def decoded(self) -> Dtype:
        """The dtype of the values; that of blocks is float32."""
        return self.dtype or dt.float32

    def bytes_for(self, count: int) -> int:
        """Bytes that store `count` values."""
        return count // self.elements * self.nbytes

    def __str__(self) -> str:
        return self.name


def _plain(name: str, dtype: Dtype) -> Encoding:
    return Encoding(name, dtype, 1, dtype.itemsize)


_PLAIN = {
    dtype: _plain(name, dtype)
    for name, dtype in {
        "BOOL": dt.bool_,
        "U8": dt.uint8,
        "U16": dt.uint16,
        "U32": dt.uint32,
        "U64": dt.uint64,
        "I8": dt.int8,
        "I16": dt.int16,
        "I32": dt.int32,
        "I64": dt.int64,
        "F16": dt.float16,
        "BF16": dt.bfloat16,
        "F32": dt.float32,
        "F64": dt.float64,
    }.items()
}
# Eight-bit floats are blocks of one element, as no device computes with them.
FLOAT8 = tuple(Encoding(name, None, 1, 1) for name in ("F8_E4M3", "F8_E5M2", "F8_E8M0"))
_BLOCKS = tuple(Encoding(t.name, None, t.elements, t.bytes) for t in TYPES if not t.is_plain)
ENCODINGS = {e.name: e for e in (*_PLAIN.values(), *FLOAT8, *_BLOCKS)}


def plain(dtype: Dtype) -> Encoding:
    """The encoding of plain elements of a dtype."""
    return _PLAIN[dtype]


@dataclass(frozen=True)
class FileRange:
    """A range of bytes in a file."""

    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Deflated:
    """Compressed bytes in a zip file: `packed` of them at `offset`. The data follows `skip`
    bytes."""

    file: Path
    offset: int
    packed: int
    skip: int
    nbytes: int


@dataclass(frozen=True)
class Inline:
    """Bytes that were decoded from a header."""

    data: bytes = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return len(self.data)


Source = FileRange | Deflated | Inline


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor: row-major unless it has strides, which count elements."""

    name: str
    encoding: Encoding
    shape: Shape
    source: Source
    strides: Shape | None = None

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of its elements in bytes."""
        return self.encoding.bytes_for(self.size)


@dataclass(frozen=True)
class ModelFiles:
    """A model as its files describe it, without its tensors' values."""

    path: Path
    format: str
    """The name of a registered `FileFormat`: one of `Format`, or of one added from outside."""
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Path | None = None
    """The tokenizer.json or tokenizer.model in the folder; GGUF has its tokenizer in metadata."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def paths(self) -> frozenset[Path]:
        """The files that contain tensors."""
        sources = (info.source for info in self.tensors.values())
        return frozenset(s.file for s in sources if not isinstance(s, Inline))


Chunk = bytes | bytearray | memoryview


@dataclass(frozen=True)
class OutgoingInfo:
    """The description of a tensor to be written."""

    name: str
    encoding: Encoding
    shape: Shape

    @property
    def nbytes(self) -> int:
        return self.encoding.bytes_for(math.prod(self.shape))


@dataclass(frozen=True)
class Outgoing(OutgoingInfo):
    """A tensor to be written. `chunks` gives its bytes in order and is called when they are
    written."""

    chunks: Callable[[], Iterable[Chunk]] = field(repr=False)
