"""Tensors to files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.formats import ENCODINGS, Format, Outgoing, plain, writing
from lbrx.formats.containers import mlx
from lbrx.formats.descriptor import Chunk
from lbrx.storage import Array, PackedStorage
from lbrx.tensor.core import Tensor
from lbrx.tensor.derived import packed_rows

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
        scheme = _scheme_to_keep(tensors[name].array, kind)
        if scheme is None:
            outgoing.append(_plain(tensors, name))
        elif kind is Format.GGUF:
            outgoing.append(_blocks(tensors, name, scheme))
        else:
            schemes[name.removesuffix(".weight")] = scheme
            outgoing += _mlx_parts(tensors, name)
    settings = dict(config or {})
    if schemes:
        chosen = mlx.quantization_config(schemes)
        settings |= {"quantization": chosen, "quantization_config": chosen}
    writing.write(
        target,
        outgoing,
        metadata or {},
        kind,
        max_shard_size=max_shard_size,
        files={"config.json": json.dumps(settings, indent=2).encode()} if settings else None,
    )


def _scheme_to_keep(array: Array, kind: Format) -> str | None:
    """The scheme of packed rows that a format can hold as they are."""
    storage = array.storage
    if not isinstance(storage, PackedStorage) or packed_rows(array) is None:
        return None
    encoding = ENCODINGS.get(storage.scheme.upper())
    is_gguf = encoding is not None and encoding.elements > 1
    is_mlx = storage.scheme.startswith("mlx:")
    kept = (kind is Format.GGUF and is_gguf) or (kind is Format.MLX and is_mlx)
    return storage.scheme if kept else None


def _plain(tensors: Mapping[str, Tensor], name: str) -> Outgoing:
    tensor = tensors[name]
    chunks = partial(_chunks, tensors, name, None)
    return Outgoing(name, plain(tensor.dtype), tensor.shape, chunks)


def _blocks(tensors: Mapping[str, Tensor], name: str, scheme: str) -> Outgoing:
    chunks = partial(_chunks, tensors, name, "data")
    return Outgoing(name, ENCODINGS[scheme.upper()], tensors[name].shape, chunks)


def _mlx_parts(tensors: Mapping[str, Tensor], name: str) -> Iterator[Outgoing]:
    for part, array in (packed_rows(tensors[name].array) or {}).items():
        target = name if part == "data" else f"{name.removesuffix('.weight')}.{part}"
        chunks = partial(_chunks, tensors, name, part)
        yield Outgoing(target, plain(array.dtype), array.layout.shape, chunks)


def _chunks(tensors: Mapping[str, Tensor], name: str, part: str | None) -> Iterator[Chunk]:
    """The bytes of a tensor or of a stored part of it, looked up only now."""
    array = tensors[name].array
    return _bytes_of(array if part is None else (packed_rows(array) or {})[part])


def _bytes_of(array: Array) -> Iterator[Chunk]:
    """Elements in row-major order, some megabytes at a time."""
    data = np.ascontiguousarray(array.numpy()).reshape(-1).view(np.uint8)
    for start in range(0, data.nbytes, _CHUNK):
        yield data[start : start + _CHUNK].data
