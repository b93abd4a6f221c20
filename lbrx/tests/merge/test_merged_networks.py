"""Language models of merges that are not written: logits against numpy.

A llama's GGUF has the rows of queries and keys in another order than a folder. Each configuration is
also merged from folders alone, whose tensors the reference gets.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from merge_checks import linear, stacked
from safetensors.numpy import save_file
from tiny_models import shapes, to_gguf_file

sys.path.append(str(Path(__file__).parent.parent / "models"))
import reference_model

import lbrx
from lbrx.arrays.storage import ViewStorage
from lbrx.files.stored.stored_model import StoredModel
from lbrx.merging.experts import parse_mixture, plan_mixture

TOKENS = [5, 9, 300, 77, 2, 41]
Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture
def models(model, tmp_path, with_tokenizer, tokenizer, rng):
    """Two folders, their GGUFs, and an adapter of one layer's queries, by name."""
    usual = {n: np.full(s, 2.0 * ("norm" in n)) for n, s in shapes("llama", 4, 620).items()}
    for name in ("a", "b"):
        model(name, vocab=620, scale=4, near=usual)
        with_tokenizer(name, tokenizer)
        to_gguf_file(tmp_path / name, tmp_path / f"{name}.gguf")
    (tmp_path / "lora").mkdir()
    settings = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(settings))
    factors = {"A": (3, 64), "B": (64, 3)}
    tensors = {f"{Q}.lora_{part}.weight": rng.standard_normal(s) for part, s in factors.items()}
    tensors = {name: values.astype(np.float32) * 0.3 for name, values in tensors.items()}
    save_file(tensors, tmp_path / "lora" / "adapter_model.safetensors")
    return lambda name, as_folder=False: str(
        tmp_path / (name.replace(".gguf", "") if as_folder else name)
    )


def with_base(method, base, *models, **parameters):
    entries = [{"model": each, "parameters": {"weight": 0.7}} for each in models]
    chosen = {"merge_method": method, "models": entries, "base_model": base}
    return {**chosen, "parameters": parameters}


MERGES = {
    "layers, GGUF first": lambda m: stacked((m("a.gguf"), 0, 1), (m("b"), 1, 2)),
    "layers, GGUF last": lambda m: stacked((m("a"), 0, 1), (m("b.gguf"), 1, 2)),
    "layers of GGUFs": lambda m: stacked((m("a.gguf"), 0, 2), (m("b.gguf"), 0, 2)),
    "some layers cast": lambda m: stacked(
        (m("a.gguf"), 0, 1), (m("b.gguf"), 1, 2), dtype="float32"
    ),
    "linear": lambda m: linear((m("a.gguf"), 1), (m("b"), 3)),
    "slerp": lambda m: with_base("slerp", m("a.gguf"), m("b.gguf"), t=0.3),
    "ties": lambda m: with_base("ties", m("b"), m("a.gguf"), density=0.5),
    "an adapter of queries alone": lambda m: stacked((f"{m('a.gguf')}+{m('lora')}", 0, 2)),
}


def expected(model):
    weights = {name: model[name].numpy() for name in model}
    return reference_model.logits(model.config, weights, TOKENS)


def logits(model):
    opened = lbrx.language_model(model, device="cpu", cache_dtype="float32")
    return opened.engine.all_logits(TOKENS).numpy(), opened


def close(given, wanted):
    np.testing.assert_allclose(given, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("case", MERGES)
def test_logits_of_mixed_sources(models, tmp_path, case):
    wanted = expected(lbrx.merge(MERGES[case](lambda name: models(name, as_folder=True))))
    given, _ = logits(lbrx.merge(MERGES[case](models)))
    close(given, wanted)
    lbrx.merge(MERGES[case](models), tmp_path / "out", device="cpu")
    close(logits(tmp_path / "out")[0], wanted)


def test_a_mixture_of_experts_of_ggufs(models):
    def mixture(as_folder):
        experts = [{"source_model": models(name, as_folder)} for name in ("a", "b.gguf")]
        base = models("b.gguf", as_folder)
        document = {"base_model": base, "gate_mode": "random", "experts": experts}
        made = plan_mixture(parse_mixture(document)).model
        return StoredModel(made, made.recipes)

    given, _ = logits(mixture(as_folder=False))
    close(given, expected(mixture(as_folder=True)))


def test_layers_stay_in_the_mapped_file(models):
    """Only those whose order of rows changes are copied."""
    _, opened = logits(lbrx.merge(stacked((models("a.gguf"), 0, 1), (models("b"), 1, 2))))
    parts = [layer.attention for layer in opened.engine.network.layers]
    assert [part.rotary.interleaved for part in parts] == [True, False]
    for part in parts:
        assert isinstance(part.query.weight.array.storage, ViewStorage)


def test_fingerprints_tell_merges_apart(models):
    """The stored tensors are the same, and what kept programs and prompts depend on is not."""
    found = []
    for weight in (1, 2, 1):
        _, opened = logits(lbrx.merge(linear((models("a"), weight), (models("b"), 1))))
        found.append(opened.engine.network.weights.fingerprint())
    assert found[0] == found[2] != found[1]
