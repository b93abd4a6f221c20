"""Mixtures of experts made of dense models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from device_memory import tolerance

sys.path.append(str(Path(__file__).parent.parent / "models"))
import reference_model

import lbrx
from lbrx.cli import main
from lbrx.errors import FormatError
from lbrx.merging.experts import parse_mixture, plan_mixture
from lbrx.merging.router_rows import GateMode, random_rows

VOCABULARY = 620
KINDS = {
    "llama": ("mixtral", "block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
    "mistral": ("mixtral", "block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
    "qwen2": ("qwen2_moe", "mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "qwen3": ("qwen3_moe", "mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
}


@pytest.fixture
def dense(model, tmp_path, with_tokenizer, tokenizer):
    """Writes a base and two models of one kind, with tokenizers."""

    def make(kind="llama", **settings):
        made = [
            model(name, kind, vocab=VOCABULARY, scale=4, **settings) for name in ("base", "x", "y")
        ]
        for name in ("base", "x", "y"):
            with_tokenizer(name, tokenizer, bos_token="<|begin|>")
        return made

    return make


def document(folder, shared=False, **settings):
    experts = [
        {"source_model": str(folder / "x"), "positive_prompts": ["one two", "three four five"]},
        {
            "source_model": str(folder / "y"),
            "positive_prompts": ["code"],
            "negative_prompts": ["poem"],
        },
    ]
    result = {"base_model": str(folder / "base"), "gate_mode": "random", "experts": experts}
    if shared:
        result["shared_experts"] = [
            {
                "source_model": str(folder / "base"),
                "positive_prompts": ["all"],
                "residual_scale": 0.5,
            }
        ]
    return {**result, **settings}


def written(given, folder, *options):
    (folder / "moe.yml").write_text(json.dumps(given))
    assert (
        main(
            [
                "merge",
                str(folder / "moe.yml"),
                str(folder / "out"),
                "--device",
                "cpu",
                "--quiet",
                *options,
            ]
        )
        == 0
    )
    return lbrx.open_model(folder / "out")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_and_logits(kind, dense, tmp_path):
    """Everything is where the architecture has it, and the network computes with it."""
    base, *experts = dense(kind)
    model_type, block, parts = KINDS[kind]
    found = written(document(tmp_path, shared=kind == "qwen2"), tmp_path)
    assert found.config["model_type"] == model_type
    for name, values in base.items():
        if ".mlp." not in name:
            np.testing.assert_array_equal(found[name].numpy(), values)
    for e, expert in enumerate(experts):
        for part, called in parts.items():
            name = f"model.layers.1.{block}.experts.{e}.{called}.weight"
            np.testing.assert_array_equal(
                found[name].numpy(), expert[f"model.layers.1.mlp.{part}_proj.weight"]
            )
    if kind == "qwen2":
        down = found["model.layers.0.mlp.shared_expert.down_proj.weight"].numpy()
        np.testing.assert_allclose(down, 0.5 * base["model.layers.0.mlp.down_proj.weight"])
    tokens = [5, 9, 300, 77, 2]
    weights = {name: found[name].numpy() for name in found}
    wanted = reference_model.logits(found.config, weights, tokens)
    llm = lbrx.language_model(tmp_path / "out", device="cpu", cache_dtype="float32")
    np.testing.assert_allclose(llm.engine.all_logits(tokens).numpy(), wanted, atol=2e-4)
    assert llm.generate("one two", max_tokens=3, ignore_end=True).tokens


def embeddings(llm, base, prompts):
    found = [base["model.embed_tokens.weight"][tokens_of(llm, p)].sum(0) for p in prompts]
    total = np.sum(found, axis=0)
    return total / np.linalg.norm(total)


def tokens_of(llm, prompt):
    """After the token that begins a text, without one that ends it."""
    return [0, *llm.tokenizer.encode(prompt, special=False)]


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_gates_from_embeddings(device, dense, tmp_path):
    base = dense()[0]
    given = parse_mixture(document(tmp_path, gate_mode="cheap_embed"))
    gates = gate_rows(plan_mixture(given, device=device).model)
    llm = lbrx.language_model(tmp_path / "base", device="cpu")
    for layer in range(2):
        first = embeddings(llm, base, ["one two", "three four five"])
        second = embeddings(llm, base, ["code"]) - embeddings(llm, base, ["poem"])
        for row, wanted in zip(gates[layer], (first, second), strict=True):
            least = tolerance(1e-5, 2e-3) if device == "metal" else 1e-5
            np.testing.assert_allclose(row, wanted / np.linalg.norm(wanted), atol=least)


@pytest.mark.parametrize(
    ("device", "mode"), [("cpu", "hidden_avg"), ("cpu", "hidden"), ("metal", "hidden")]
)
def test_gates_from_hidden_states(device, mode, dense, tmp_path):
    """What enters each layer, by a model of the first layers alone."""
    base = dense()[0]
    given = parse_mixture(document(tmp_path, gate_mode=mode))
    gates = gate_rows(plan_mixture(given, device=device).model)
    llm = lbrx.language_model(tmp_path / "base", device="cpu")
    settings = json.loads((tmp_path / "base" / "config.json").read_text())
    reference = reference_model.Reference(
        settings, {k: v.astype(np.float64) for k, v in base.items()}
    )

    def states(prompt, layer):
        x = reference.w["model.embed_tokens.weight"][tokens_of(llm, prompt)]
        for n in range(layer):
            x = reference.layer(x, n)
        return x.mean(0) if mode == "hidden_avg" else x[-1]

    for layer in range(2):
        first = np.mean([states(p, layer) for p in ("one two", "three four five")], axis=0)
        second = states("code", layer) - states("poem", layer)
        for row, wanted in zip(gates[layer], (first, second), strict=True):
            least = tolerance(2e-3, 1e-2) if device == "metal" else 2e-3
            np.testing.assert_allclose(row, wanted / np.linalg.norm(wanted), atol=least)


def gate_rows(model):
    opened = lbrx.StoredModel(model, model.recipes)
    return [opened[f"model.layers.{n}.block_sparse_moe.gate.weight"].numpy() for n in range(2)]


def test_a_gguf_of_the_mixture_runs(dense, tmp_path):
    dense()
    written(document(tmp_path, dtype="float16"), tmp_path)
    main(
        [
            "merge",
            str(tmp_path / "moe.yml"),
            str(tmp_path / "out.gguf"),
            "--device",
            "cpu",
            "--quiet",
            "--quantize",
            "q8_0",
        ]
    )
    tokens = [5, 9, 300]
    first, second = (
        lbrx.language_model(tmp_path / name, device="cpu").engine.all_logits(tokens).numpy()
        for name in ("out", "out.gguf")
    )
    assert np.abs(first - second).max() < 0.05 * np.abs(first).max()


def test_types_noise_and_scales(dense, tmp_path):
    _, x, _ = dense()
    given = document(tmp_path, dtype="bfloat16")
    given["experts"][0] |= {"noise_scale": 0.1, "residual_scale": 2.0}
    found = written(given, tmp_path)
    assert {found[name].dtype for name in found} == {lbrx.bfloat16}
    at, own = (
        "model.layers.0.block_sparse_moe.experts.0.w2.weight",
        "model.layers.0.mlp.down_proj.weight",
    )
    noise = found[at].numpy().astype(np.float32) - 2 * x[own]
    assert noise.std() == pytest.approx(0.2, rel=0.1)
    # The same bits again, and other ones for another seed.
    model = plan_mixture(parse_mixture(given)).model
    again = lbrx.StoredModel(model, model.recipes)
    np.testing.assert_array_equal(again[at].numpy(), found[at].numpy())
    other = plan_mixture(parse_mixture(given), seed=1).model
    assert (lbrx.StoredModel(other, other.recipes)[at].numpy() != found[at].numpy()).any()


def test_random_rows_depend_on_the_seed_alone():
    first = random_rows(GateMode.RANDOM, 3, 4, 64, 7)
    np.testing.assert_array_equal(first, random_rows(GateMode.RANDOM, 3, 4, 64, 7))
    assert (first != random_rows(GateMode.RANDOM, 3, 4, 64, 8)).all()
    assert np.abs(first.std() - 1) < 0.1
    assert np.abs(random_rows(GateMode.UNIFORM_RANDOM, 3, 4, 64, 7)).max() <= 1 / 8


MISTAKES = {
    "mode": ({"gate_mode": "hiden"}, "one of hidden, hidden_last"),
    "prompts": (
        {"gate_mode": "hidden", "experts": [{"source_model": "a"}] * 2},
        "positive_prompts is missing",
    ),
    "same": (
        {"gate_mode": "hidden", "experts": [{"source_model": "a", "positive_prompts": ["x"]}] * 2},
        "the same prompts",
    ),
    "one": ({"experts": [{"source_model": "a"}]}, "experts has 1 entries"),
    "used": ({"experts_per_token": 3}, "a number from 1 to 2"),
    "dtype": ({"dtype": "int8"}, "dtype is 'int8'"),
    "key": ({"gate_modes": "random"}, "did you mean gate_mode"),
    "shared": ({"shared_experts": [{"source_model": "a"}]}, "remove shared_experts"),
    "architecture": ({"architecture": "qwen3"}, "does not fit"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, dense, tmp_path):
    dense()
    settings, message = MISTAKES[name]
    with pytest.raises(FormatError, match=message):
        plan_mixture(parse_mixture({**document(tmp_path), **settings}))


def test_models_that_do_not_fit(dense, model, tmp_path):
    dense()
    model("wide", "llama", vocab=VOCABULARY, scale=8)
    model("qwen", "qwen2", vocab=VOCABULARY, scale=4)
    model("gemma", "gemma2", vocab=VOCABULARY, scale=4)
    for name, message in (("wide", "experts of one size"), ("qwen", "of the base's architecture")):
        given = document(tmp_path)
        given["experts"][1]["source_model"] = str(tmp_path / name)
        with pytest.raises(FormatError, match=message):
            plan_mixture(parse_mixture(given))
    with pytest.raises(FormatError, match="of which lbrx makes no mixture"):
        plan_mixture(parse_mixture(document(tmp_path, base_model=str(tmp_path / "gemma"))))
    given = {**document(tmp_path), "base_model": str(tmp_path / "qwen")}
    with pytest.raises(FormatError, match="one shared expert"):
        plan_mixture(parse_mixture(given))
