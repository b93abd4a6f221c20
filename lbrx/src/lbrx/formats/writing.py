"""Writing models, whatever the format: tensor by tensor, under the final name when complete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.formats.checks import MAX_BYTES, bad, check_name
from lbrx.formats.containers import gguf_writer, npz, safetensors
from lbrx.formats.descriptor import Format, Outgoing, OutgoingInfo
from lbrx.formats.layout import FileLayout, write_file
from lbrx.formats.output import BUFFER, filling, replacing

EXTENSIONS = {
    ".safetensors": Format.SAFETENSORS,
    ".gguf": Format.GGUF,
    ".npz": Format.NPZ,
}
WRITABLE = (Format.SAFETENSORS, Format.MLX, Format.GGUF, Format.NPZ)
DEFAULT_SHARD = 5 * 10**9
# Of an earlier model in the same folder: readers would take them for this one's.
OLD_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B?", re.IGNORECASE)


def format_for(path: Path, format: str | None) -> Format:
    """The format asked for, or else the one that a file name stands for."""
    if format is None:
        found = EXTENSIONS.get(path.suffix)
        if found is None:
            known = ", ".join(EXTENSIONS)
            raise FormatError(f"{path}: the name ends in none of {known}: give format=")
        return found
    if format not in WRITABLE:
        raise FormatError(f"{format!r} is none of the formats written: {', '.join(WRITABLE)}")
    return Format(format)


def parse_size(size: int | str) -> int:
    """Bytes, as a number or like '5GB' or '512 MiB'."""
    found = _SIZE.fullmatch(str(size).strip())
    base = 1024 if found and found[3] else 1000
    scale = base ** " KMGT".index(found[2].upper() or " ") if found else 0
    nbytes = float(found[1]) * scale if found else 0
    if not 1 <= nbytes <= MAX_BYTES:
        raise FormatError(
            f"{str(size)[:40]!r} is no size of a shard: write it like '5GB' or '512MiB'"
        )
    return int(nbytes)


@dataclass(frozen=True)
class Output:
    """Files to write at a path: one, or those of a folder."""

    path: Path
    is_folder: bool
    layouts: Mapping[str, FileLayout]
    files: Mapping[str, bytes]
    """What else goes into the folder: config.json and the like."""


def plan(
    path: Path,
    tensors: Sequence[OutgoingInfo],
    metadata: Mapping[str, Any],
    format: Format,
    *,
    max_shard_size: int | str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Output:
    """Where all of a model will lie. MLX's is a folder, as is safetensors' unless the path names a
    file."""
    for tensor in tensors:
        check_name(path, tensor.name)
    is_folder = format is Format.MLX or (
        format is Format.SAFETENSORS and path.suffix != ".safetensors"
    )
    limit = DEFAULT_SHARD if max_shard_size is None else parse_size(max_shard_size)
    if max_shard_size is not None and not is_folder:
        _check_one_file(path, tensors, limit)
    if is_folder:
        note = {"format": "mlx"} if format is Format.MLX else {}
        texts = {**_texts(path, metadata), **note}
        layouts, index = safetensors.sharded(path, tensors, texts, limit)
        return Output(path, True, layouts, {**index, **(files or {})})
    if files:
        raise bad(path, f"a file has no place for {', '.join(files)}: name a folder")
    if format is Format.GGUF:
        whole = gguf_writer.layout(path, tensors, metadata)
    elif format is Format.NPZ:
        whole = npz.layout(path, tensors, metadata)
    else:
        whole = safetensors.layout(path, tensors, _texts(path, metadata))
    return Output(path, False, {path.name: whole}, {})


def _check_one_file(path: Path, tensors: Sequence[OutgoingInfo], limit: int) -> None:
    if sum(tensor.nbytes for tensor in tensors) > limit:
        problem = f"is one file, but shards of {limit:,} bytes need a folder of safetensors"
        raise bad(path, problem)


def write(
    path: Path,
    tensors: Sequence[Outgoing],
    metadata: Mapping[str, Any],
    format: Format,
    *,
    max_shard_size: int | str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """A model, one tensor after the other."""
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


def _texts(path: Path, metadata: Mapping[str, Any]) -> Mapping[str, str]:
    if wrong := [key for key, value in metadata.items() if not isinstance(value, str)]:
        raise bad(path, "safetensors holds texts only", field=f"metadata {wrong[0]!r}")
    return metadata
