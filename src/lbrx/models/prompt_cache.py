"""What a model has read, saved to a file and restored: keys and values with their tokens."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from os import PathLike
from pathlib import Path

import numpy as np

from lbrx.errors import FormatError, LbrxError
from lbrx.models.engine import Engine
from lbrx.storage import empty_aligned
from lbrx.tensor.creation import from_numpy, tensor
from lbrx.tensor.model import open_model

_FORMAT = "lbrx prompt cache 1"


def fingerprint(engine: Engine) -> str:
    """What a cache's numbers depend on: the configuration and some of the weights."""
    config = engine.model.config
    sample = engine.model.norm.weight.numpy()
    facts = json.dumps([repr(config), engine.cache_type.name], sort_keys=True)
    return hashlib.sha256(facts.encode() + np.ascontiguousarray(sample).tobytes()).hexdigest()[:32]


def write(engine: Engine, path: str | PathLike[str]) -> None:
    """Save what the engine remembers of its one text."""
    if engine.cache is None or not engine.remembered:
        raise LbrxError("there is nothing to save: let the model read a prompt first")
    length = len(engine.remembered)
    kept = engine.cache.store[..., :length, :].numpy()
    values = empty_aligned(kept.shape, engine.cache_type.dtype)
    values[...] = kept
    tensors = {
        "cache": from_numpy(values, device="cpu"),
        "tokens": tensor(np.array(engine.remembered, np.int32), device="cpu"),
    }
    metadata = {"format": _FORMAT, "model": fingerprint(engine)}
    import_module("lbrx.tensor.saving").save(path, tensors, metadata, format="safetensors")


def read(engine: Engine, path: str | PathLike[str]) -> int:
    """Restore it; returns how many tokens there are."""
    file = open_model(path)
    if file.metadata.get("format") != _FORMAT or set(file) != {"cache", "tokens"}:
        raise FormatError(f"{Path(path)} is no prompt cache: it was written by something else")
    if file.metadata.get("model") != fingerprint(engine):
        raise FormatError(
            f"{Path(path)} is the cache of another model, or of another type: write it anew"
        )
    tokens = file["tokens"].numpy().tolist()
    cached = file["cache"].numpy()
    cache = engine.reserve(1, len(tokens))
    store = cache.store.numpy()
    if cached.shape != (*store.shape[:-2], len(tokens), store.shape[-1]):
        raise FormatError(f"{Path(path)} has a cache of shape {cached.shape}: write it anew")
    vocabulary = engine.model.config.vocabulary
    if not all(0 <= token < vocabulary for token in tokens):
        raise FormatError(f"{Path(path)} has tokens beyond the vocabulary of {vocabulary}")
    store[..., : len(tokens), :] = cached
    engine.remembered = tokens
    return len(tokens)
