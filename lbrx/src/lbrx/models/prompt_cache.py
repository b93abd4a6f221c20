"""Saves the KV cache of a text with its tokens to a file, and restores it."""

from __future__ import annotations

import hashlib
import os
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays.storage import empty_aligned
from lbrx.errors import FormatError, LbrxError
from lbrx.files.stored.stored_model import open_model
from lbrx.models.engine import Engine
from lbrx.tensors.creation import from_numpy, tensor

_FORMAT = "lbrx prompt cache 2"


def fingerprint(engine: Engine) -> str:
    """A hash of what the cache depends on: weights, configuration and cache type."""
    weights, config = engine.network.weights, engine.network.config
    facts = (weights.fingerprint(), config, dict(config.settings), engine.cache_type.name)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def write(engine: Engine, path: str | PathLike[str]) -> None:
    """Save the tokens that are in the engine's cache. Raises LbrxError if there are none."""
    from lbrx.files.stored.load_and_save import save

    target = _ordinary_file(path)
    _check_plain(engine)
    with engine.lock:
        if engine.cache is None or not engine.cached_tokens:
            raise LbrxError("there is nothing to save: generate from a single prompt first")
        tokens = np.array(engine.cached_tokens, np.int32)
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
    # `save` takes the format from the suffix, which the user's file name need not have.
    hidden = target.with_name(f".{target.name}.{os.getpid()}.safetensors")
    save(hidden, tensors, metadata)
    os.replace(hidden, target)


def read(engine: Engine, path: str | PathLike[str]) -> int:
    """Restore a cache that `write` saved, and return its number of tokens.

    Raises FormatError for a damaged file, or one of another model or cache type.
    """
    name = _ordinary_file(path)
    _check_plain(engine)
    file = open_model(name)
    if file.metadata.get("format") != _FORMAT or set(file) != {"cache", "tokens"}:
        raise FormatError(f"{name} is not a prompt cache: give a file that save_prompt wrote")
    if file.metadata.get("model") != fingerprint(engine):
        raise FormatError(
            f"{name} is the cache of another model, of other settings or of another cache type: "
            "delete it, or name another file"
        )
    tokens, cached = file["tokens"].numpy(), file["cache"]
    if file.metadata.get("checksum") != _checksum(tokens, cached.numpy()):
        raise FormatError(f"{name} is damaged: delete it")
    with engine.lock:
        cache = engine.reserve(1, len(tokens))
        engine.cached_tokens = []
        cache.write(cached)
        engine.cached_tokens = tokens.tolist()
    return len(tokens)


def _check_plain(engine: Engine) -> None:
    if engine.network.config.states:
        raise LbrxError(
            f"{engine.network.config.model_type} has recurrent layers, whose states are not saved: "
            "give the prompt again"
        )


def _ordinary_file(path: str | PathLike[str]) -> Path:
    if not isinstance(path, str | PathLike) or "\0" in str(path):
        raise LbrxError(f"{path!r:.80} is not the path of a file: give a text or a Path")
    file = Path(path)
    if file.exists() and not file.is_file():
        raise LbrxError(f"{file} is a folder or a device: give the name of an ordinary file")
    return file


def _checksum(*arrays: NDArray[Any]) -> str:
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"
