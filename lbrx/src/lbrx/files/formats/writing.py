"""Write models in any format, tensor by tensor. Files get their names when they are complete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.checks import MAX_BYTES, bad, check_name, check_path
from lbrx.files.formats.descriptor import Outgoing, OutgoingInfo
from lbrx.files.formats.file_formats import FORMATS, FileFormat
from lbrx.files.formats.layout import FileLayout, write_file
from lbrx.files.formats.output import BUFFER, filling, replacing

DEFAULT_SHARD = 5 * 10**9
# Files of an earlier model in the same folder, which readers would take for this one's.
OLD_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B?", re.IGNORECASE)


def extensions() -> dict[str, FileFormat]:
    """The formats that are written as files, by the end of a path that stands for them."""
    return {
        format.extension: format for format in FORMATS.whole().values() if format.layout is not None
    }


def writable() -> list[str]:
    """The names of the formats that are written."""
    return [format.name for format in FORMATS.whole().values() if format.is_written]


def format_for(path: Path, format: str | None) -> FileFormat:
    """The format of that name, or else the one that the path's extension stands for."""
    if format is None:
        known = extensions()
        if path.suffix not in known:
            raise FormatError(f"{path} does not end in {', '.join(known)}: give format=")
        return known[path.suffix]
    if format not in writable():
        known_names = ", ".join(writable())
        raise FormatError(f"{format!r} is not a format that lbrx writes: give one of {known_names}")
    return FORMATS[format]


def parse_size(size: int | str) -> int:
    """A number of bytes, from an integer or text like '5GB' or '512 MiB'. Text needs the unit."""
    found = _SIZE.fullmatch(str(size).strip())
    base = 1024 if found and found[3] else 1000
    scale = base ** " KMGT".index(found[2].upper() or " ") if found else 0
    nbytes = float(found[1]) * scale if found else 0
    has_unit = not isinstance(size, str) or not size.strip()[-1:].isdigit()
    if not has_unit or not 1 <= nbytes <= MAX_BYTES:
        raise FormatError(f"{str(size)[:40]!r} is not a size: write it like '5GB' or '512MiB'")
    return int(nbytes)


@dataclass(frozen=True)
class Output:
    """The layout of everything to write at a path: one file, or the files of a folder."""

    path: Path
    is_folder: bool
    layouts: Mapping[str, FileLayout]
    files: Mapping[str, bytes]
    """The folder's other files, such as config.json, by name."""


def plan(
    path: Path,
    tensors: Sequence[OutgoingInfo],
    metadata: Mapping[str, Any],
    format: FileFormat,
    *,
    max_shard_size: int | str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Output:
    """Lay out all files of a model: one file, or a folder where the format writes one."""
    check_path(path)
    for tensor in tensors:
        check_name(path, tensor.name)
    is_folder = format.is_folder(path)
    _check_what_is_there(path, format, is_folder)
    limit = DEFAULT_SHARD if max_shard_size is None else parse_size(max_shard_size)
    if max_shard_size is not None and not is_folder:
        _check_one_file(path, tensors, limit)
    if is_folder:
        assert format.shards is not None
        layouts, index = format.shards(path, tensors, metadata, limit)
        return Output(path, True, layouts, {**index, **(files or {})})
    if files:
        raise bad(path, f"is one file, which cannot hold {', '.join(files)}: name a folder")
    if format.layout is None:
        raise bad(path, f"lbrx does not write {format.name}: give one of {', '.join(writable())}")
    return Output(path, False, {path.name: format.layout(path, tensors, metadata)}, {})


def _check_what_is_there(path: Path, format: FileFormat, is_folder: bool) -> None:
    """Raises FormatError for a path with something that what is written could not replace, or
    should not, as /dev/null."""
    if path.is_symlink() and not path.exists():
        raise FormatError(f"{path} is a broken link: give another name")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FormatError(f"{path} is a device, pipe or socket: give a file or a folder")
    if not is_folder and path.is_dir():
        raise FormatError(
            f"{path} is a folder, and {format.name} is written as a file: name a file in it"
        )
    if is_folder and path.is_file():
        raise FormatError(
            f"{path} is a file, and {format.name} is written as a folder: give another name"
        )


def _check_one_file(path: Path, tensors: Sequence[OutgoingInfo], limit: int) -> None:
    if sum(tensor.nbytes for tensor in tensors) > limit:
        problem = f"is one file, but shards of {limit:,} bytes need a folder of safetensors"
        raise bad(path, problem)


def write(
    path: Path,
    tensors: Sequence[Outgoing],
    metadata: Mapping[str, Any],
    format: FileFormat,
    *,
    max_shard_size: int | str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model, one tensor after the other."""
    output = plan(path, tensors, metadata, format, max_shard_size=max_shard_size, files=files)
    if not output.is_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            write_file(file, output.layouts[path.name], tensors)
        return
    with filling(path, OLD_WEIGHTS) as temporary:
        for name, layout in output.layouts.items():
            with (temporary / name).open("w+b", buffering=BUFFER) as file:
                write_file(file, layout, tensors)
        for name, content in output.files.items():
            (temporary / name).write_bytes(content)
