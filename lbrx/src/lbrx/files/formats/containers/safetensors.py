"""safetensors: the header's length in eight bytes, a JSON header, then the tensors.

Reading enforces the format's rules: no gaps, no overlaps, no bytes after the last tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from lbrx.files.formats.checks import MAX_HEADER, bad, check_blocks, checked_shape, parse_json
from lbrx.files.formats.descriptor import (
    ENCODINGS,
    Encoding,
    FileRange,
    Format,
    ModelFiles,
    OutgoingInfo,
    TensorInfo,
)
from lbrx.files.formats.layout import FileLayout, Placed

_LENGTH = 8
_ALIGNMENT = 8
_NOTE = "__metadata__"
# The types that the format has names for.
_NAMES = "BOOL U8 U16 U32 U64 I8 I16 I32 I64 F16 BF16 F32 F64 F8_E4M3 F8_E5M2 F8_E8M0".split()
TYPES = {name: ENCODINGS[name] for name in _NAMES}


def read(path: Path) -> ModelFiles:
    """Describe one file."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        header, start = _read_header(path, file, size)
    note = header.pop(_NOTE, {})
    if not isinstance(note, dict) or not all(isinstance(v, str) for v in note.values()):
        raise bad(path, "is not an object of strings", field=_NOTE)
    tensors = {name: _tensor(path, name, entry, start) for name, entry in header.items()}
    _check_tiling(path, tensors, start, size)
    return ModelFiles(path, Format.SAFETENSORS, tensors, metadata=note)


def _read_header(path: Path, file: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    """The header, and the offset of the first tensor."""
    if size < _LENGTH:
        raise bad(path, f"has {size} bytes, fewer than a header length: the file is cut short")
    length = int.from_bytes(file.read(_LENGTH), "little")
    if length > size - _LENGTH:
        raise bad(
            path,
            f"{length:,} bytes, but only {size - _LENGTH:,} follow: "
            "the file is cut short or is not safetensors",
            field="header length",
        )
    if length > MAX_HEADER:
        raise bad(path, f"{length:,} bytes, at most {MAX_HEADER:,}", field="header length")
    header = parse_json(path, file.read(length), "header")
    if not isinstance(header, dict):
        raise bad(path, f"a {type(header).__name__}, not an object", field="header")
    return header, _LENGTH + length


def _tensor(path: Path, name: str, entry: object, start: int) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise bad(
            path, "is not an object of dtype, shape and data_offsets", tensor=name, field="header"
        )
    encoding = _encoding(path, name, entry["dtype"])
    if not isinstance(entry["shape"], list):
        raise bad(path, "is not a list", tensor=name, field="shape")
    shape = checked_shape(path, name, entry["shape"], "shape")
    nbytes = check_blocks(path, name, encoding, shape)
    match entry["data_offsets"]:
        case [int() as begin, int() as end] if 0 <= begin <= end:
            pass
        case other:
            raise bad(
                path,
                f"{str(other)[:60]} is not a range of bytes",
                tensor=name,
                field="data_offsets",
            )
    if end - begin != nbytes:
        raise bad(
            path,
            f"{end - begin:,} bytes, but {encoding} of shape {shape} takes {nbytes:,}",
            tensor=name,
            field="data_offsets",
        )
    return TensorInfo(name, encoding, shape, FileRange(path, start + begin, nbytes))


def _encoding(path: Path, name: str, dtype: object) -> Encoding:
    encoding = TYPES.get(dtype) if isinstance(dtype, str) else None
    if encoding is None:
        known = ", ".join(TYPES)
        raise bad(path, f"{str(dtype)[:40]!r} is not one of {known}", tensor=name, field="dtype")
    return encoding


def _check_tiling(path: Path, tensors: Mapping[str, TensorInfo], start: int, size: int) -> None:
    """Raises FormatError unless the tensors fill the file without gaps or overlaps."""
    ranges = sorted((_range(t).offset, _range(t).nbytes, name) for name, t in tensors.items())
    at = start
    for offset, nbytes, name in ranges:
        if offset != at:
            word = (
                "overlaps the tensor before it"
                if offset < at
                else f"leaves {offset - at} bytes unused"
            )
            raise bad(path, word, tensor=name, field="data_offsets")
        at += nbytes
    if at > size:
        last = ranges[-1][2]
        raise bad(path, f"ends at byte {at:,} of {size:,}: the file is cut short", tensor=last)
    if at < size:
        raise bad(path, f"{size - at:,} bytes follow the last tensor", field="data_offsets")


def _range(tensor: TensorInfo) -> FileRange:
    assert isinstance(tensor.source, FileRange)
    return tensor.source


def layout(path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any]) -> FileLayout:
    """One file, in the given order except that wider elements come first, which aligns them."""
    if wrong := [key for key, value in metadata.items() if not isinstance(value, str)]:
        problem = "safetensors stores only strings: convert the value with str()"
        raise bad(path, problem, field=f"metadata {wrong[0]!r}")
    ordered = sorted(tensors, key=lambda t: -t.encoding.nbytes)
    header = _header(path, ordered, metadata)
    whole = len(header).to_bytes(_LENGTH, "little") + header
    *starts, end = accumulate((tensor.nbytes for tensor in ordered), initial=len(whole))
    return FileLayout(end, tuple(map(Placed, ordered, starts)), lambda _: [(0, whole)])


def _header(path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {_NOTE: dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        if tensor.encoding.name not in TYPES:
            raise bad(
                path,
                f"safetensors has no type for {tensor.encoding}: decode it, or write GGUF",
                tensor=tensor.name,
            )
        if tensor.name in header or tensor.name == _NOTE:
            raise bad(path, "occurs twice or is the name of the metadata", tensor=tensor.name)
        header[tensor.name] = {
            "dtype": tensor.encoding.name,
            "shape": list(tensor.shape),
            "data_offsets": [at, at := at + tensor.nbytes],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MAX_HEADER:
        problem = f"{len(text):,} bytes, but readers accept at most {MAX_HEADER:,}: write shards"
        raise bad(path, problem, field="header")
    return text + b" " * (-len(text) % _ALIGNMENT)


def shards(tensors: Sequence[OutgoingInfo], limit: int) -> Iterator[list[OutgoingInfo]]:
    """Consecutive tensors of at most `limit` bytes together; a larger tensor is alone."""
    run: list[OutgoingInfo] = []
    size = 0
    for tensor in tensors:
        if run and size + tensor.nbytes > limit:
            yield run
            run, size = [], 0
        run.append(tensor)
        size += tensor.nbytes
    yield run


def sharded(
    path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any], limit: int
) -> tuple[dict[str, FileLayout], dict[str, bytes]]:
    """Lay out `model.safetensors`, or numbered files and the index with the file of each tensor."""
    parts = list(shards(tensors, limit))
    if len(parts) == 1:
        return {"model.safetensors": layout(path, parts[0], metadata)}, {}
    names = [f"model-{n:05}-of-{len(parts):05}.safetensors" for n in range(1, len(parts) + 1)]
    files = {name: layout(path, part, metadata) for name, part in zip(names, parts, strict=True)}
    weight_map = {t.name: name for name, part in zip(names, parts, strict=True) for t in part}
    total = sum(tensor.nbytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return files, {"model.safetensors.index.json": json.dumps(index, indent=2).encode()}
