"""A file format: a line of JSON with the place of each tensor, then the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.extension.errors import FormatError
from lbrx.extension.files import (
    ENCODINGS,
    FileFormat,
    FileLayout,
    FileRange,
    ModelFiles,
    OutgoingInfo,
    Placed,
    TensorInfo,
    register,
)

MAGIC = b"TOYS"
FIRST = 4096  # where the first tensor is


def read(path: Path) -> ModelFiles:
    """What is in a file."""
    with path.open("rb") as file:
        header = json.loads(file.readline()[len(MAGIC) :])
    if not isinstance(header, dict):
        raise FormatError(f"{path}: header: is not an object")
    tensors = {
        name: TensorInfo(name, ENCODINGS[kind], tuple(shape), FileRange(path, at, nbytes))
        for name, (kind, shape, at, nbytes) in header.items()
    }
    return ModelFiles(path, "toys", tensors)


def layout(path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any]) -> FileLayout:
    """Where everything goes in a new file."""
    if metadata:
        raise FormatError(f"{path}: toys store no metadata")
    at, placed, entries = FIRST, [], {}
    for tensor in tensors:
        placed.append(Placed(tensor, at))
        entries[tensor.name] = (tensor.encoding.name, tensor.shape, at, tensor.nbytes)
        at += tensor.nbytes
    head = MAGIC + json.dumps(entries).encode() + b"\n"
    return FileLayout(at, tuple(placed), lambda file: [(0, head)])


TOYS = register(
    FileFormat(
        "toys",
        lambda path, head: head.startswith(MAGIC),
        read,
        patterns=("*.toys",),
        extension=".toys",
        layout=layout,
        holds=lambda encoding: encoding == "Q8_0",
    )
)
