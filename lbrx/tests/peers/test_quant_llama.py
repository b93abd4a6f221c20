"""Encoding and mixtures against llama.cpp, from llama-cpp-python where it is installed."""

from __future__ import annotations

from pathlib import Path

import llama_models
import numpy as np
import pytest

from lbrx import quant
from lbrx.quant import gguf as ours

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
# llama.cpp has no encoder for the type of its activations.
ENCODABLE = [scheme.name for scheme in ours.SCHEMES if scheme.encode and scheme.name != "q8_k"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ENCODABLE)
def test_the_error_is_llama_cpps(name: str, weighted: bool) -> None:
    quantize = llama_models.ggml_quantizer(llama_cpp)
    rng = np.random.default_rng(4)
    for values in (rng.standard_normal((64, 1024)), rng.standard_t(3, (64, 1024)) * 0.02):
        values = values.astype(np.float32)
        importance = rng.random(1024).astype(np.float32) if weighted else None
        theirs = quant.dequantize(quantize(values, name, importance), name, values.shape)
        mine = quant.dequantize(*quant.quantize(values, name, importance))
        weights = 1 if importance is None else importance
        errors = [np.sqrt(np.mean(weights * (back - values) ** 2)) for back in (mine, theirs)]
        assert errors[0] <= errors[1] * 1.02


@pytest.mark.parametrize("model", llama_models.MODELS)
def test_mixtures_choose_the_same_types(models: Path, model: str) -> None:
    facts, columns = llama_models.MODELS[model]
    shapes = llama_models.tensors(facts, columns)
    for mixture in llama_models.mixtures_of(model):
        choose = quant.mixture(mixture, facts)
        mine = {name: choose(name, shape) for name, shape in shapes.items()}
        assert mine == llama_models.llama_types(llama_cpp, models, model, mixture), mixture
