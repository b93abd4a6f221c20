"""Tiny models to convert."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes
import pytest
from safetensors.numpy import save_file

sys.path.append(str(Path(__file__).parent.parent / "formats"))
import tiny_tokenizers
from tiny_models import config, shapes

SCALE = 16  # rows of 256 and 384: whole K blocks, and not


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizers.byte_level("llama-bpe")


@pytest.fixture
def folder(tmp_path, rng, tokenizer):
    """Writes a tiny model of an architecture as bfloat16 and gives its folder and tensors."""

    def make(kind="llama", dtype=ml_dtypes.bfloat16):
        vocab = tokenizer.get_vocab_size()
        tensors = {
            name: (rng.standard_normal(shape) * 0.1).astype(dtype)
            for name, shape in shapes(kind, SCALE, vocab).items()
        }
        path = tmp_path / kind
        tiny_tokenizers.write(
            path, tokenizer, chat_template="{{ messages }}", bos_token="<|begin|>"
        )
        (path / "config.json").write_text(json.dumps(config(kind, SCALE, vocab)))
        save_file(tensors, path / "model.safetensors")
        return path, tensors

    return make


@pytest.fixture
def small_pieces(monkeypatch):
    """Small pieces, so that each tensor has several."""
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 4096)
