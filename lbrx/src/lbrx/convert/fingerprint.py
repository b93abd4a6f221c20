"""A hash of everything that decides the bytes of a conversion's target."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lbrx.convert.conversion_plan import ConversionPlan
from lbrx.formats.remote_files import remote_of
from lbrx.version import VERSION

# Of a source file, so many blocks at equal distances are read, or all if there are no more.
_BLOCKS, _BLOCK = 256, 4096


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def fingerprint(plan: ConversionPlan, device: str, piece: int) -> str:
    """A hash of the plan, of all that it was made from, and of the source files' states with a
    sample of their content. `piece` is the number of values in a piece."""
    digest = hashlib.sha256()
    output, source = plan.output, plan.files
    places = [
        (file, layout.nbytes, layout.tensors) for file, layout in sorted(output.layouts.items())
    ]
    made_from = (source.config, source.generation_config, source.metadata)
    written = (plan.items, plan.metadata, output.files, places)
    _add(digest, (VERSION, device, piece, plan.format, plan.settings, made_from, written))
    for file in sorted([*source.paths, *filter(None, [plan.settings.imatrix])]):
        _add_file(digest, file)
    return digest.hexdigest()


def _add(digest: _Digest, value: object) -> None:
    """Add a value with its type and its size, so that different values give different bytes."""
    parts = _parts(value)
    if parts is not None:
        digest.update(f"{type(value).__name__} of {len(parts)}:".encode())
        for part in parts:
            _add(digest, part)
        return
    data = _content(value)
    digest.update(f"{type(value).__name__} {len(data)}:".encode() + data)


def _parts(value: Any) -> list[object] | None:
    """The parts of a container or record; None for other values."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tobytes()]
    return None


def _content(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _add_file(digest: _Digest, path: Path) -> None:
    """Add a file's name, size, times, and a sample of its content. Programs can set the time of
    modification but not the time of the last change. A copy of a remote file is filled meanwhile:
    what its host says about it counts."""
    if (remote := remote_of(path)) is not None:
        _add(digest, remote)
        return
    state = path.stat()
    _add(digest, (path.resolve(), state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    last = max(state.st_size - _BLOCK, 0)
    count = min(_BLOCKS, -(-state.st_size // _BLOCK))
    with path.open("rb", buffering=0) as file:
        for i in range(count):
            file.seek(last * i // max(count - 1, 1))
            digest.update(file.read(_BLOCK))
