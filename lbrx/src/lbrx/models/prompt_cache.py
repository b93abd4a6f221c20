"""What a model has read, saved to a file and restored: keys and values with their tokens."""

from __future__ import annotations

import hashlib
import os
import zlib
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError, LbrxError
from lbrx.models.engine import Engine
from lbrx.storage import empty_aligned
from lbrx.tensor.creation import from_numpy, tensor
from lbrx.tensor.stored_model import open_model

_FORMAT = "lbrx prompt cache 2"


def fingerprint(engine: Engine) -> str:
    """What a cache's numbers depend on: the weights, the configuration and the cache's type."""
    model, config = engine.model, engine.model.config
    facts = (model.weights.fingerprint(), config, dict(config.settings), engine.cache_type.name)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def write(engine: Engine, path: str | PathLike[str]) -> None:
    """Save what the engine remembers of its one text."""
    with engine.lock:
        if engine.cache is None or not engine.remembered:
            raise LbrxError("there is nothing to save: let the model read a single prompt first")
        tokens = np.array(engine.remembered, np.int32)
        kept = engine.cache.store[..., : len(tokens), :].numpy()
        values = empty_aligned(kept.shape, engine.cache_type.dtype)
        values[...] = kept
    tensors = {
        "cache": from_numpy(values, device="cpu"),
        "tokens": tensor(tokens, device="cpu"),
    }
    metadata = {
        "format": _FORMAT,
        "model": fingerprint(engine),
        "checksum": _checksum(tokens, values),
    }
    target = _file(path)
    # A name of this kind is a file's for `save`, and the user's need not be.
    hidden = target.with_name(f".{target.name}.{os.getpid()}.safetensors")
    import_module("lbrx.tensor.saving").save(hidden, tensors, metadata)
    os.replace(hidden, target)


def read(engine: Engine, path: str | PathLike[str]) -> int:
    """Restore it; returns how many tokens there are."""
    name = _file(path)
    file = open_model(name)
    if file.metadata.get("format") != _FORMAT or set(file) != {"cache", "tokens"}:
        raise FormatError(f"{name} is no prompt cache: it was written by something else")
    if file.metadata.get("model") != fingerprint(engine):
        raise FormatError(
            f"{name} is the cache of another model, of other settings or of another type of cache: "
            "delete it, or name another file"
        )
    tokens, cached = file["tokens"].numpy(), file["cache"].numpy()
    if file.metadata.get("checksum") != _checksum(tokens, cached):
        raise FormatError(f"{name} is damaged: delete it")
    with engine.lock:
        store = engine.reserve(1, len(tokens)).store.numpy()
        engine.remembered = []
        store[..., : len(tokens), :] = cached
        engine.remembered = tokens.tolist()
    return len(tokens)


def _file(path: str | PathLike[str]) -> Path:
    file = Path(path)
    if file.exists() and not file.is_file():
        raise LbrxError(f"{file} is a folder or a device: name an ordinary file")
    return file


def _checksum(*arrays: NDArray[Any]) -> str:
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"
