"""The initializers of ONNX files.

Walking the protocol buffer leaves tensors in the file. The onnx package would read the whole file
into memory, and no file above 2 GiB.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.errors import FormatError
from lbrx.files.formats.checks import (
    MAX_TENSORS,
    bad,
    check_blocks,
    checked_shape,
    is_file_name,
    shown,
)
from lbrx.files.formats.containers.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    ProtobufMessage,
    signed,
)
from lbrx.files.formats.descriptor import (
    ENCODINGS,
    Encoding,
    FileRange,
    Format,
    Inline,
    ModelFiles,
    Source,
    TensorInfo,
)

_TYPES = {
    1: "F32",
    2: "U8",
    3: "I8",
    4: "U16",
    5: "I16",
    6: "I32",
    7: "I64",
    9: "BOOL",
    10: "F16",
    11: "F64",
    12: "U32",
    13: "U64",
    16: "BF16",
    17: "F8_E4M3",
    19: "F8_E5M2",
}
# Field numbers of onnx.proto.
_GRAPH, _METADATA, _INITIALIZER = 7, 14, 5
_PRODUCER = {1: "ir_version", 2: "producer_name", 3: "producer_version", 4: "domain"}
# The fields with typed data, and the wire type of one number where they are not packed.
_NUMBERS = {4: FIXED32, 5: VARINT, 7: VARINT, 10: FIXED64, 11: VARINT}
_DETECTED_FIELDS = 1000


def is_model(path: Path) -> bool:
    """Whether a file can be parsed as a ModelProto with a graph."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        fields = islice(ProtobufMessage(path, data), _DETECTED_FIELDS)
        return any(number == _GRAPH and wire == BYTES for number, wire, _, _ in fields)
    except FormatError:
        return False


def read(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    metadata: dict[str, Any] = {}
    tensors: dict[str, TensorInfo] = {}
    model = ProtobufMessage(path, data)
    for number, wire, start, end in model:
        if number == _GRAPH and wire == BYTES:
            for info in _initializers(model.inner(start, end)):
                if info.name in tensors:
                    raise bad(path, "occurs twice", tensor=info.name)
                if len(tensors) == MAX_TENSORS:
                    raise bad(path, f"more than {MAX_TENSORS:,} tensors", tensor=info.name)
                tensors[info.name] = info
        elif number == _METADATA and wire == BYTES:
            key, value = _pair(model.inner(start, end))
            metadata[key] = value
        elif number in _PRODUCER:
            metadata[_PRODUCER[number]] = start if wire == VARINT else model.text(start, end)
    return ModelFiles(path, Format.ONNX, tensors, metadata=metadata)


def _initializers(graph: ProtobufMessage) -> Iterator[TensorInfo]:
    for number, wire, start, end in graph:
        if number == _INITIALIZER and wire == BYTES:
            yield _tensor(graph.inner(start, end))


def _pair(message: ProtobufMessage) -> tuple[str, str]:
    texts = {n: message.text(a, b) for n, wire, a, b in message if wire == BYTES}
    return texts.get(1, ""), texts.get(2, "")


@dataclass
class _Proto:
    """The fields of a TensorProto."""

    name: str = ""
    kind: int = 0
    dims: list[int] = field(default_factory=list)
    raw: tuple[int, int] | None = None
    runs: list[tuple[int, int, int, int]] = field(default_factory=list)
    external: dict[str, str] = field(default_factory=dict)
    is_external: bool = False


def _tensor(message: ProtobufMessage) -> TensorInfo:
    """A TensorProto: 1 dims, 2 data_type, 8 name, 9 raw_data, 13 external_data, 14 location."""
    proto = _Proto()
    for number, wire, start, end in message:
        match number, wire:
            case (1, 0):
                proto.dims.append(signed(start))
            case (1, 2):
                proto.dims += map(signed, message.inner(start, end).varints())
            case (2, 0):
                proto.kind = start
            case (8, 2):
                proto.name = message.text(start, end)
            case (9, 2):
                proto.raw = (start, end)
            case (13, 2):
                key, value = _pair(message.inner(start, end))
                proto.external[key] = value
            case (14, 0):
                proto.is_external = start == 1
            case _ if wire in (BYTES, _NUMBERS.get(number)) and number in _NUMBERS:
                proto.runs.append((number, wire, start, end))
    return _described(message, proto)


def _described(message: ProtobufMessage, proto: _Proto) -> TensorInfo:
    path, name = message.path, proto.name
    if proto.kind not in _TYPES:
        raise bad(
            path, f"{proto.kind} is a type that lbrx does not read", tensor=name, field="data_type"
        )
    encoding = ENCODINGS[_TYPES[proto.kind]]
    shape = checked_shape(path, name, proto.dims, "dims")
    nbytes = check_blocks(path, name, encoding, shape)
    source: Source
    if proto.is_external:
        source = _external(path, name, proto.external, nbytes)
    elif proto.raw:
        source = FileRange(path, proto.raw[0], proto.raw[1] - proto.raw[0])
    else:
        source = _numbers(message, proto, encoding)
    if source.nbytes != nbytes:
        problem = f"{encoding} of shape {shape} takes {nbytes:,} bytes, not {source.nbytes:,}"
        raise bad(path, problem, tensor=name, field="data")
    return TensorInfo(name, encoding, shape, source)


def _numbers(message: ProtobufMessage, proto: _Proto, encoding: Encoding) -> Source:
    """The data of a typed field: a range of the file if it is packed in the element type."""
    if len(proto.runs) == 1:
        number, wire, start, end = proto.runs[0]
        if wire == BYTES and _NUMBERS[number] != VARINT:
            return FileRange(message.path, start, end - start)
    parts = []
    for number, wire, start, end in proto.runs:
        if _NUMBERS[number] != VARINT:
            parts.append(bytes(message.data[start:end]))
        else:
            packed = message.inner(start, end).varints() if wire == BYTES else iter((start,))
            parts.append(np.fromiter(packed, np.uint64).astype(f"<u{encoding.nbytes}").tobytes())
    return Inline(b"".join(parts))


def _external(path: Path, name: str, external: dict[str, str], nbytes: int) -> FileRange:
    """A range of a file in the same folder."""
    location = external.get("location", "")
    if not is_file_name(location):
        problem = f"{shown(location)} is not the name of a file in this folder"
        raise bad(path, problem, tensor=name, field="external_data location")
    file = path.with_name(location)
    if not file.is_file():
        raise bad(
            path, f"{shown(location)} is missing", tensor=name, field="external_data location"
        )
    try:
        offset = int(external.get("offset", "0")[:20])
        length = int(external.get("length", str(nbytes))[:20])
    except ValueError:
        raise bad(path, "is not a number", tensor=name, field="external_data offset") from None
    if offset < 0 or length < 0 or offset + length > file.stat().st_size:
        problem = f"bytes {offset:,} to {offset + length:,} are not in {location}"
        raise bad(path, problem, tensor=name, field="external_data offset")
    return FileRange(file, offset, length)
