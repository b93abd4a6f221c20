"""A hash of everything that decides the bytes of a conversion's target."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.convert.conversion_plan import ConversionPlan
from lbrx.files.formats.remote_files import remote_of
from lbrx.version import VERSION

# Of a source file, so many blocks at equal distances are read, or all if there are no more.
_BLOCKS, _BLOCK = 256, 4096
_PLAIN = (str, int, float, bool, type(None))


def fingerprint(plan: ConversionPlan, device: str, piece: int) -> str:
    """A hash of the plan, of all that it was made from, and of the source files' states with a
    sample of their content. `piece` is the number of values in a piece."""
    output, source = plan.output, plan.files
    places = [
        (file, layout.nbytes, layout.tensors) for file, layout in sorted(output.layouts.items())
    ]
    made_from = (source.config, source.generation_config, source.metadata)
    written = (plan.items, plan.metadata, output.files, places)
    decided = (VERSION, device, piece, plan.format, plan.settings, made_from, written)
    digest = hashlib.sha256(_encoded(_text(decided, {})))
    for file in sorted([*source.paths, *filter(None, [plan.settings.imatrix])]):
        _add_file(digest, file)
    return digest.hexdigest()


def _text(value: Any, known: dict[int, str]) -> str:
    """A value with its type and its size: different values have different texts. `known` has the
    texts of records by identity, since tensors share many of them."""
    kind: Any = type(value)
    if kind in _PLAIN:
        text = str(value)
        return f"{kind.__name__} {len(text)}:{text}"
    if (fields := _fields(kind)) is not None:
        if id(value) not in known:
            parts = [_text(getattr(value, name), known) for name in fields]
            known[id(value)] = f"{kind.__name__} of {len(parts)}:{''.join(parts)}"
        return known[id(value)]
    if isinstance(value, list | tuple):
        return f"{kind.__name__} of {len(value)}:{''.join([_text(v, known) for v in value])}"
    if isinstance(value, Mapping):
        parts = [_text(part, known) for pair in value.items() for part in pair]
        return f"{kind.__name__} of {len(parts)}:{''.join(parts)}"
    if isinstance(value, np.ndarray):
        return _text((str(value.dtype), value.shape, value.tobytes()), known)
    text = hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)
    return f"{kind.__name__} {len(text)}:{text}"


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of a dataclass's fields; None for other types."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    """Add a file's name, size, times, and a sample of its content. Programs can set the time of
    modification but not the time of the last change. A copy of a remote file is filled meanwhile:
    what its host says about it counts."""
    if (remote := remote_of(path)) is not None:
        digest.update(_encoded(_text(remote, {})))
        return
    state = path.stat()
    known = (path.resolve(), state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    digest.update(_encoded(_text(known, {})))
    last = max(state.st_size - _BLOCK, 0)
    count = min(_BLOCKS, -(-state.st_size // _BLOCK))
    with path.open("rb", buffering=0) as file:
        for i in range(count):
            digest.update(os.pread(file.fileno(), _BLOCK, last * i // max(count - 1, 1)))
