"""Model files: `.mlpackage` folders, `.mlmodel` files, and models in memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcoreml import mil
from softcoreml.description import ModelDescription
from softcoreml.errors import ModelError, UnreadableModel
from softcoreml.format import description_message, program_message, schema
from softcoreml.format.weights import FolderWeights, MemoryWeights, Weights
from softcoreml.format.wire import decode, raw_field

NEWEST_SPECIFICATION = 10
_MAX_MANIFEST = 1 << 20


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model as it was read: nothing of its weights is in memory until it is used."""

    specification: int
    description: ModelDescription
    program: mil.Program
    weights: Weights
    description_bytes: bytes = b""


def read_specification(data: memoryview, weights: Weights) -> ModelFile:
    """A model from the bytes of a message Model.

    Raises:
        ModelError: it is not an ML program, is malformed, or newer than softcoreml.
    """
    message = decode(data, schema.MODEL)
    version = message.get("specificationVersion", 0)
    if "mlProgram" not in message:
        raise ModelError(f"the model is {_kind(data)}: softcoreml runs models of type mlProgram")
    if version > NEWEST_SPECIFICATION:
        raise ModelError(
            f"specification version {version} is newer than {NEWEST_SPECIFICATION}, "
            "the newest that softcoreml knows"
        )
    return ModelFile(
        specification=version,
        description=description_message.description(message.get("description", {})),
        program=program_message.program(message["mlProgram"]),
        weights=weights,
        description_bytes=bytes(raw_field(data, 2)),
    )


def _kind(data: memoryview) -> str:
    for number, name in schema.MODEL_TYPES.items():
        if len(raw_field(data, number)):
            return f"of type {name}"
    return "not a Core ML model, or empty"


def read_memory(data: bytes | memoryview, files: Mapping[str, bytes | memoryview]) -> ModelFile:
    """A model in memory; `files` are its weight files by their path relative to the model."""
    return read_specification(memoryview(data), MemoryWeights(files))


def read_mlmodel(path: Path) -> ModelFile:
    """A `.mlmodel` file, whose weights are in the folder `weights` beside it."""
    return read_specification(mapped(path), FolderWeights(path.parent))


def mapped(path: Path) -> memoryview:
    """A file's bytes, mapped."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise ModelError(f"{path} is empty")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as problem:
        raise UnreadableModel(f"cannot read {path}: {problem.strerror}") from None


def specification_path(package: Path) -> Path:
    """The `.mlmodel` of a package, which its manifest names."""
    manifest = _manifest(package / "Manifest.json")
    entries, root = manifest.get("itemInfoEntries"), manifest.get("rootModelIdentifier")
    entry = entries.get(root) if isinstance(entries, dict) and isinstance(root, str) else None
    relative = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(relative, str):
        raise ModelError(f"{package}: the manifest does not name a root model")
    if Path(relative).is_absolute() or ".." in Path(relative).parts:
        raise ModelError(f"{package}: the manifest's path {relative!r} leaves the package")
    return package / "Data" / relative


def _manifest(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_MANIFEST:
            raise ModelError(f"{path} is larger than {_MAX_MANIFEST} bytes")
        found = json.loads(path.read_bytes())
    except OSError as problem:
        raise UnreadableModel(f"cannot read {path}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise ModelError(f"{path} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} is not an object")
    return found
