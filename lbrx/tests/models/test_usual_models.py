"""What `lbrx shaders build` compiles for language models is what generating text uses."""

from __future__ import annotations

import pytest

import lbrx
from lbrx import metal
from lbrx.metal import library
from lbrx.models.usual_models import model_pipelines, usual_models


def test_the_packaged_model_needs_nothing_more(smollm2, monkeypatch):
    """With prompts that are taken token by token, in one chunk, and in several."""
    planned = {each for model in usual_models() for each in model_pipelines(model)}
    used: set[library.PipelineRequest] = set()
    compile_all = library.Shaders.compile_all

    def noted(self, requests):
        used.update(requests)
        return compile_all(self, requests)

    monkeypatch.setattr(library.Shaders, "compile_all", noted)
    model = lbrx.language_model(smollm2, context=1024, device="metal")
    for words in (2, 30, 600):
        model.generate(" ".join(["word"] * words), max_tokens=3, temperature=0)
    assert len(used) > 10
    assert used <= planned


@pytest.mark.parametrize("model", list(usual_models()), ids=lambda m: f"{m.name}-{m.weights[0]}")
def test_listing_runs_and_compiles_nothing(model):
    gpu = metal.context()
    before = gpu.shaders.compiled.kernels, metal.stats()["dispatches"]
    requests = model_pipelines(model)
    assert (gpu.shaders.compiled.kernels, metal.stats()["dispatches"]) == before
    names = {each.function for each in requests}
    for scheme in model.weights:
        assert any(scheme in name for name in names), scheme
    assert 10 < len(requests) < 40
