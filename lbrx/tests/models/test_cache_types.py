"""Types of the KV cache: memory and logits, above all of q8_0."""

from __future__ import annotations

import device_memory
import numpy as np
import pytest
import reference_model

import lbrx
from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.models import engine as engines
from lbrx.models.kv_cache import find_cache_type

TOKENS = np.random.default_rng(7).integers(2, 600, 17).tolist()
PRECISION = 1e-3  # of logits: a key that differs in its last bit may round to the next code


@pytest.fixture(scope="module")
def folder(make_model):
    """A model with a head size of 32, which is one block."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    return make_model("llama", **heads, max_position_embeddings=1024)


def rounded(values):
    return quant.dequantize(quant.quantize(values.astype(np.float32), "q8_0")[0], "q8_0")


@pytest.fixture(scope="module")
def wanted(folder):
    """Logits after every token, with keys and values rounded to q8_0."""
    model = lbrx.open_model(folder).canonical()
    weights = {name: model[name].numpy() for name in model}
    settings = {**model.config, "_stored": rounded}
    return reference_model.logits(settings, weights, TOKENS)


def close(given, wanted, tolerance=PRECISION):
    tolerance = max(tolerance, device_memory.tolerance(0, 3e-2))
    error = np.abs(given - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"differs by {error:.2g}"


@pytest.mark.parametrize("device", ["metal", "cpu"])
def test_logits(device, folder, wanted):
    model = lbrx.language_model(folder, cache_dtype="q8_0", device=device)
    close(model.engine.all_logits(TOKENS).numpy(), wanted)
    state = model.engine.prefill([TOKENS[:12]], 5)
    close(state.logits.numpy()[0], wanted[11])
    for i in range(12, 17):
        token = lbrx.tensor([[TOKENS[i]]], dtype="int64", device=device)
        state = model.engine.decode(token, state.positions)
        close(state.logits.numpy()[0], wanted[i])


def test_prompts_in_chunks(folder, monkeypatch):
    model = lbrx.language_model(folder, cache_dtype="q8_0")
    whole = model.engine.prefill([TOKENS], 1).logits.numpy()
    monkeypatch.setattr(engines, "CHUNK", 5)
    monkeypatch.setattr(engines, "SHORT_PROMPT", 0)
    model.engine.cached_tokens = []
    close(model.engine.prefill([TOKENS], 1).logits.numpy(), whole, 1e-4)


def test_a_batch_equals_single_texts(folder):
    model = lbrx.language_model(folder, cache_dtype="q8_0")
    prompts = ["Hello, world! It's", "a", "12345 o'clock"]
    together = model.generate(prompts, max_tokens=8, ignore_end=True)
    for prompt, made in zip(prompts, together, strict=True):
        assert made.tokens == model.generate(prompt, max_tokens=8, ignore_end=True).tokens


def test_a_longer_cache_takes_over_what_is_there(folder):
    model = lbrx.language_model(folder, cache_dtype="q8_0")
    first = model.engine.prefill([TOKENS], 1).logits.numpy()
    stored = model.engine.cache.store.numpy()[..., :16, :].copy()
    second = model.engine.prefill([TOKENS], 400)
    assert model.engine.cache.capacity > 400
    np.testing.assert_array_equal(model.engine.cache.store.numpy()[..., :16, :], stored)
    close(second.logits.numpy(), first, 1e-4)


def test_a_saved_prompt(folder, tmp_path):
    first, second = (lbrx.language_model(folder, cache_dtype="q8_0") for _ in range(2))
    made = first.generate("Hello, world!", max_tokens=8, ignore_end=True)
    first.save_prompt(tmp_path / "cache")
    assert lbrx.open_model(tmp_path / "cache")["cache"].dtype is dt.uint8
    second.restore_prompt(tmp_path / "cache")
    again = second.generate("Hello, world!", max_tokens=8, ignore_end=True)
    assert again.tokens == made.tokens
    with pytest.raises(lbrx.FormatError, match="another cache type"):
        lbrx.language_model(folder).restore_prompt(tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "bits"), [("q8_0", 8.5), ("f16", 16), ("bf16", 16), ("float32", 32)]
)
def test_memory(name, bits, folder):
    model = lbrx.language_model(folder, cache_dtype=name, context=256)
    cache = model.engine.reserve(1, 256)
    numbers = 2 * model.config.layers * 32 * 256
    assert model.memory.cache == cache.store.numpy().nbytes == numbers * bits / 8


@pytest.mark.parametrize("size", [16, 72, 80])
def test_head_sizes_that_are_not_multiples_of_a_block(size):
    with pytest.raises(
        lbrx.LbrxError, match=f"multiple of 32, and the model's is {size}: choose float16"
    ):
        find_cache_type("q8_0", size)


@pytest.mark.parametrize("given", ["q4_0", "int8", np.int8, "f8"])
def test_types_that_are_not_possible(given):
    choices = r"choose one of float16 \(f16\), bfloat16 \(bf16\), float32 \(f32\), q8_0"
    with pytest.raises(lbrx.LbrxError, match=choices):
        find_cache_type(given, 64)
