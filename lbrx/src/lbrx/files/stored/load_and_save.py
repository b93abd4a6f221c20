"""`save` and `load`: tensors to files and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from os import PathLike, fspath
from typing import Any

import numpy as np

from lbrx.arrays.storage import Array, PackedStorage
from lbrx.errors import DtypeError, ShapeError
from lbrx.files import formats
from lbrx.files.formats import ENCODINGS, FileFormat, Outgoing, plain
from lbrx.files.formats.descriptor import Chunk
from lbrx.files.formats.file_formats import conventions_of
from lbrx.files.formats.packaged_models import target_path
from lbrx.files.stored.stored_model import StoredModel
from lbrx.tensors.core import Tensor
from lbrx.tensors.derived import packed_rows
from lbrx.tensors.operands import array_of

_CHUNK = 16 << 20


def load(path: str | PathLike[str], device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file or folder of any format, by name: the inverse of `save`.

    Shapes, dtypes and names are the stored ones, and quantized tensors stay packed. Files are
    mapped and read when a tensor is used. The tensors are on the cpu unless a device is given;
    metal shares the mapping where it can. Metadata and config.json are those of
    `lbrx.open_model(path)`, as `.metadata` and `.config`. Raises `FormatError` for a path that does
    not exist, is not a model, or is damaged.

        lbrx.save("a.safetensors", {"w": w}, {"author": "me"})
        w = lbrx.load("a.safetensors", device="metal")["w"]
        lbrx.open_model("a.safetensors").metadata["author"]
    """
    files = formats.read(fspath(path))
    packed = files.config.get("quantization")
    recipes = conventions_of(files).whole(files) if packed else files.tensors
    tensors = dict(StoredModel(files, recipes))
    return tensors if device is None else {n: x.to_device(device) for n, x in tensors.items()}


def save(
    path: str | PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    format: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    max_shard_size: int | str | None = None,
) -> None:
    """Write tensors, or arrays of other libraries, to a file or folder, which appears when it is
    complete.

    The format is that of the path's extension (.safetensors, .gguf, .npz) or `format`, which can
    also be "mlx". MLX, and safetensors with a path of another extension, write a folder: shards of
    at most `max_shard_size` bytes (or text like "5GB"), an index, and `config` as config.json.
    `metadata` is stored in the weights' files: strings in safetensors, also numbers and lists in
    GGUF, none in .npz.

    Quantized tensors keep their blocks in a format that can store them (GGUF's types in GGUF, MLX's
    in MLX); in other formats they are stored as float32. Tensors are fetched one at a time, so a
    model opened from disk is written in bounded memory. Raises `FormatError` for what the format
    cannot store.
    """
    from lbrx.files.formats import writing
    from lbrx.files.formats.containers import mlx

    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors is {type(tensors).__name__}: give a mapping of names to tensors")
    target = target_path(path)
    kind = writing.format_for(target, format)
    outgoing: list[Outgoing] = []
    schemes: dict[str, str] = {}
    for name in tensors:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not a name of a tensor: give strings")
        scheme = _scheme_to_keep(_tensor(tensors, name).array, kind)
        if scheme is None:
            outgoing.append(_plain(tensors, name))
        elif scheme.upper() in ENCODINGS:
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


def _tensor(tensors: Mapping[str, Any], name: str) -> Tensor:
    value = tensors[name]
    if isinstance(value, Tensor):
        return value
    try:
        return Tensor(array_of(value, "cpu"))
    except (DtypeError, ShapeError) as problem:
        raise type(problem)(f"tensor {name!r}: {problem}") from None


def _scheme_to_keep(array: Array, format: FileFormat) -> str | None:
    """The scheme of packed values that the format can store as they are."""
    storage = array.storage
    if not isinstance(storage, PackedStorage) or packed_rows(array) is None:
        return None
    return storage.scheme if format.holds(storage.scheme.upper()) else None


def _plain(tensors: Mapping[str, Any], name: str) -> Outgoing:
    tensor = _tensor(tensors, name)
    chunks = partial(_chunks, tensors, name, None)
    return Outgoing(name, plain(tensor.dtype), tensor.shape, chunks)


def _blocks(tensors: Mapping[str, Any], name: str, scheme: str) -> Outgoing:
    chunks = partial(_chunks, tensors, name, "data")
    return Outgoing(name, ENCODINGS[scheme.upper()], _tensor(tensors, name).shape, chunks)


def _mlx_parts(tensors: Mapping[str, Any], name: str) -> Iterator[Outgoing]:
    for part, array in (packed_rows(_tensor(tensors, name).array) or {}).items():
        target = name if part == "data" else f"{name.removesuffix('.weight')}.{part}"
        chunks = partial(_chunks, tensors, name, part)
        yield Outgoing(target, plain(array.dtype), array.layout.shape, chunks)


def _chunks(tensors: Mapping[str, Any], name: str, part: str | None) -> Iterator[Chunk]:
    """The bytes of a tensor or of one stored part of it, looked up when they are written."""
    array = _tensor(tensors, name).array
    return _bytes_of(array if part is None else (packed_rows(array) or {})[part])


def _bytes_of(array: Array) -> Iterator[Chunk]:
    """The elements in row-major order, 16 MiB at a time."""
    data = np.ascontiguousarray(array.numpy()).reshape(-1).view(np.uint8)
    for start in range(0, data.nbytes, _CHUNK):
        yield data[start : start + _CHUNK].data
