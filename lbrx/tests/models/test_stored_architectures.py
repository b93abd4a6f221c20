"""Architectures against what transformers computed with the same weights: at once, by token, in
batches, and opened again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import seeded_weights
import stored_cases

import lbrx

STORED = json.loads((Path(__file__).with_name("data") / "transformers.json").read_text())
CLOSE = 2e-5  # of log-probabilities, in float32
HALF = 16


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, tokenizer_folder):
    """The folder of a case's model."""

    def make(case):
        folder = tmp_path_factory.mktemp("stored") / "model"
        shapes = STORED[case]["shapes"].items()
        tensors = {
            name: lbrx.tensor(seeded_weights.values(name, s), device="cpu") for name, s in shapes
        }
        lbrx.save(folder, tensors, format="safetensors", config=STORED[case]["config"])
        for file in tokenizer_folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    return make


def log_probability(logits, token):
    wide = logits.astype(np.float64)
    return wide[token] - np.log(np.exp(wide - wide.max()).sum()) - wide.max()


def test_every_case_is_stored():
    assert STORED.keys() == stored_cases.CASES.keys()


@pytest.mark.parametrize("case", STORED)
def test_log_probabilities(case, folder_of):
    text, wanted = stored_cases.TEXT, STORED[case]["log_probabilities"]
    model = lbrx.language_model(folder_of(case), cache_dtype="float32")
    np.testing.assert_allclose(model.log_probabilities(text), wanted, atol=CLOSE, rtol=0)
    state = model.engine.prefill([text[:HALF]], len(text) - HALF)
    for place in range(HALF, len(text)):
        found = log_probability(state.logits.numpy()[0], text[place])
        assert abs(found - wanted[place - 1]) < CLOSE
        state = model.engine.decode(lbrx.tensor([[text[place]]]), state.positions)


@pytest.mark.parametrize("case", [c for c in STORED if "," not in c])
def test_texts_of_a_batch_are_those_alone(case, folder_of):
    text, wanted = stored_cases.TEXT, STORED[case]["log_probabilities"]
    model = lbrx.language_model(folder_of(case), cache_dtype="float32")
    lengths = (5, 19)
    state = model.engine.prefill([text[:length] for length in lengths], 1)
    for row, length in zip(state.logits.numpy(), lengths, strict=True):
        assert abs(log_probability(row, text[length]) - wanted[length - 1]) < CLOSE


@pytest.mark.parametrize(
    ("inner", "head"),
    [("model.language_model.", "lm_head."), ("language_model.model.", "language_model.lm_head.")],
)
def test_the_language_part_of_a_model_that_sees(inner, head, tokenizer_folder, tmp_path):
    """Its settings are in `text_config`, and its tensors are among those of other parts."""
    case = "qwen3_5_text"
    text, stored = stored_cases.TEXT, STORED[case]
    tensors = {"model.visual.blocks.0.attn.qkv.weight": lbrx.zeros((4, 4), device="cpu")}
    for name, shape in stored["shapes"].items():
        own = name.replace("model.", inner, 1).replace("lm_head.", head, 1)
        tensors[own] = lbrx.tensor(seeded_weights.values(name, shape), device="cpu")
    config = {"model_type": "qwen3_5", "text_config": stored["config"], "vision_config": {}}
    lbrx.save(tmp_path / "m", tensors, format="safetensors", config=config)
    for file in tokenizer_folder.iterdir():
        (tmp_path / "m" / file.name).write_bytes(file.read_bytes())
    model = lbrx.language_model(tmp_path / "m", cache_dtype="float32")
    found = model.log_probabilities(text)
    np.testing.assert_allclose(found, stored["log_probabilities"], atol=CLOSE, rtol=0)
