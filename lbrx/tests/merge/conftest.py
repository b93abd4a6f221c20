"""Tiny models to merge."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.append(str(Path(__file__).parent.parent / "formats"))
import tiny_tokenizers
from tiny_models import config, shapes


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizers.byte_level("llama-bpe")


@pytest.fixture
def model(tmp_path, rng):
    """Writes a tiny model of an architecture and gives its tensors."""

    def make(name, kind="llama", dtype=np.float32, vocab=11, scale=1, near=None, **settings):
        tensors = {
            tensor: (rng.standard_normal(shape) * 0.1).astype(dtype)
            for tensor, shape in shapes(kind, scale, vocab).items()
        }
        if near is not None:
            tensors = {n: (near[n] + 0.1 * t).astype(dtype) for n, t in tensors.items()}
        path = tmp_path / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**config(kind, scale, vocab), **settings}))
        save_file(tensors, path / "model.safetensors")
        return tensors

    return make


@pytest.fixture
def with_tokenizer(tmp_path):
    """Writes a tokenizer into a model's folder."""

    def write(name, tokenizer, **settings):
        tiny_tokenizers.write(tmp_path / name, tokenizer, **settings)

    return write
