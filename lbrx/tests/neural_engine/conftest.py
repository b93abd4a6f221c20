"""Small language models whose heads are wide enough for the Neural Engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx

for folder in ("formats", "models"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

VOCABULARY, SCALE = 620, 8
Maker = Callable[..., Path]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """`make_model("llama")`: a folder with a random model of two layers, with heads of 32."""
    import tiny_models
    import tiny_tokenizers

    def make(kind: str, **settings: Any) -> Path:
        rng = np.random.default_rng(len(kind))
        config = {**tiny_models.config(kind, SCALE, VOCABULARY), "eos_token_id": 1, **settings}
        tensors = {}
        for name, shape in tiny_models.shapes(kind, SCALE, VOCABULARY).items():
            if name == "lm_head.weight" and settings.get("tie_word_embeddings"):
                continue
            values = rng.standard_normal(shape) * (0.2 if len(shape) == 2 else 0.1)
            values += 1 if "norm" in name else 0
            tensors[name] = lbrx.tensor(values.astype(np.float32), device="cpu")
        folder = tmp_path_factory.mktemp(kind) / "model"
        lbrx.save(folder, tensors, format="safetensors", config=config)
        tiny_tokenizers.write(folder, tiny_tokenizers.byte_level("smollm"), eos_token="<|end|>")
        return folder

    return make
