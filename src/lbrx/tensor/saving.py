"""Tensors to files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.formats import ENCODINGS, Format, Outgoing, mlx, plain, writing
from lbrx.formats.descriptor import Chunk
from lbrx.storage import Array, PackedStorage
from lbrx.tensor.core import Tensor

_CHUNK = 16 << 20


def save(
    path: str | PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any] | None = None,
    format: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    max_shard_size: int | str | None = None,
) -> None:
    """Write tensors: safetensors, gguf or npz by the path's extension, or `format`, which can be
    mlx too.

    MLX, and safetensors with a path that does not end so, write a folder: shards, an index, and
    `config` as config.json. Tensors are fetched one at a time, so a model opened from disk is
    written in bounded memory. The file or folder appears when it is complete.
    Quantized tensors keep their blocks in a format that has them and are float32 in others.
    """
    target = Path(path)
    kind = writing.format_for(target, format)
    outgoing: list[Outgoing] = []
    schemes: dict[str, str] = {}
    for name in tensors:
        storage = tensors[name].storage
        if kind is Format.MLX and _is_mlx(storage):
            assert isinstance(storage, PackedStorage)
            stem = name.removesuffix(".weight")
            schemes[stem] = storage.scheme
            outgoing += _mlx_parts(tensors, name, stem, storage)
        else:
            outgoing.append(_outgoing(tensors, name, kind))
    settings = dict(config or {})
    if schemes:
        chosen = mlx.quantization_config(schemes)
        settings |= {"quantization": chosen, "quantization_config": chosen}
    writing.write(
        target,
        outgoing,
        metadata or {},
        kind,
        max_shard_size=None if max_shard_size is None else writing.parse_size(max_shard_size),
        files={"config.json": json.dumps(settings, indent=2).encode()} if settings else None,
    )


def _is_mlx(storage: object) -> bool:
    return isinstance(storage, PackedStorage) and storage.scheme.startswith("mlx:")


def _mlx_parts(
    tensors: Mapping[str, Tensor], name: str, stem: str, storage: PackedStorage
) -> Iterator[Outgoing]:
    for part, array in storage.parts.items():
        target = name if part == "data" else f"{stem}.{part}"
        chunks = partial(_part_chunks, tensors, name, part)
        yield Outgoing(target, plain(array.dtype), array.layout.shape, chunks)


def _outgoing(tensors: Mapping[str, Tensor], name: str, kind: Format) -> Outgoing:
    tensor = tensors[name]
    storage = tensor.storage
    if kind is Format.GGUF and isinstance(storage, PackedStorage) and not _is_view(tensor):
        encoding = ENCODINGS.get(storage.scheme.upper())
        if encoding is not None and encoding.elements > 1:
            chunks = partial(_part_chunks, tensors, name, "data")
            return Outgoing(name, encoding, tensor.shape, chunks)
    return Outgoing(name, plain(tensor.dtype), tensor.shape, partial(_chunks, tensors, name))


def _is_view(tensor: Tensor) -> bool:
    """Whether it shows other elements than its storage has, or in another order."""
    layout = tensor.array.layout
    return not layout.is_contiguous or tensor.nbytes != tensor.storage.nbytes


def _chunks(tensors: Mapping[str, Tensor], name: str) -> Iterator[Chunk]:
    return _bytes_of(tensors[name].array)


def _part_chunks(tensors: Mapping[str, Tensor], name: str, part: str) -> Iterator[Chunk]:
    storage = tensors[name].storage
    assert isinstance(storage, PackedStorage)
    return _bytes_of(storage.parts[part])


def _bytes_of(array: Array) -> Iterator[Chunk]:
    """Elements in row-major order, some megabytes at a time."""
    data = np.ascontiguousarray(array.numpy()).reshape(-1).view(np.uint8)
    for start in range(0, data.nbytes, _CHUNK):
        yield data[start : start + _CHUNK].data
