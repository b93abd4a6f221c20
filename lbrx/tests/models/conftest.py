"""Writes models of a few thousand random weights, with tokenizers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

VOCABULARY = 620


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tiny_tokenizers

    folder = tmp_path_factory.mktemp("tokenizer")
    template = (
        "{% for m in messages %}<user>{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<user>assistant:{% endif %}"
    )
    tokenizer = tiny_tokenizers.byte_level("smollm")
    tiny_tokenizers.write(folder, tokenizer, eos_token="<|end|>", chat_template=template)
    return folder


Maker = Callable[..., Path]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Maker:
    """`make_model("llama")`: a folder with a random model; settings change its config.json."""
    import tiny_models

    def make(kind: str, dtype: str = "float32", seed: int = 0, **settings: Any) -> Path:
        rng = np.random.default_rng([seed, len(kind)])
        config = {**tiny_models.config(kind, 4, VOCABULARY), **settings}
        # Without it a config is taken to be Llama's, whose heads all have keys of their own.
        config.setdefault("eos_token_id", 1)
        if kind == "phi3":
            config["sliding_window"] = settings.get("sliding_window", 5)
        tensors = {}
        shapes = tiny_models.shapes(kind, 4, VOCABULARY)
        for flag, part in (("attention_bias", "self_attn"), ("mlp_bias", "mlp")):
            for name in [n for n in shapes if f"{part}." in n and settings.get(flag)]:
                shapes[name.replace("weight", "bias")] = shapes[name][:1]
        for name, shape in shapes.items():
            values = rng.standard_normal(shape) * (0.3 if len(shape) == 2 else 0.2)
            values += (
                1 if ("norm" in name or ".ln_" in name) and kind not in tiny_models.GEMMA else 0
            )
            tensors[name] = lbrx.tensor(values.astype(np.float32), device="cpu").astype(dtype)
        folder = tmp_path_factory.mktemp(kind)
        lbrx.save(folder / "model", tensors, format="safetensors", config=config)
        for file in tokenizer_folder.iterdir():
            (folder / "model" / file.name).write_bytes(file.read_bytes())
        return folder / "model"

    return make


@pytest.fixture
def make_adapter(tmp_path: Path) -> Callable[[Path, str], Path]:
    """`make_adapter(folder, module)`: the folder of a LoRA adapter of one module of a model."""

    def make(folder: Path, module: str) -> Path:
        rows, columns = lbrx.open_model(folder)[f"{module}.weight"].shape
        rng = np.random.default_rng(1)
        factors = {"A": rng.standard_normal((2, columns)), "B": rng.standard_normal((rows, 2))}
        (tmp_path / "lora").mkdir()
        lbrx.save(
            tmp_path / "lora/adapter_model.safetensors",
            {
                f"base_model.model.{module}.lora_{part}.weight": factor.astype(np.float32)
                for part, factor in factors.items()
            },
        )
        settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 1}
        (tmp_path / "lora/adapter_config.json").write_text(json.dumps(settings))
        return tmp_path / "lora"

    return make
