"""Texts with recurrent layers: their states go on, begin again, move with the cache, and are saved
by nobody."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import tolerance

import lbrx
from lbrx.models import engine

KINDS = {
    "lfm2": {},
    "qwen3_next": {},
    "granitemoehybrid": {},
    "falcon_h1": {"mamba_d_ssm": 128},
    "mamba2": {"head_dim": 16},
}


@pytest.fixture(params=KINDS)
def folder(request, make_model):
    return make_model(request.param, **KINDS[request.param])


def prompt(count, seed=0):
    return np.random.default_rng([count, seed]).integers(2, 600, count).tolist()


def close(given, wanted):
    assert np.abs(given - wanted).max() < tolerance(1e-4, 2e-2) * np.abs(wanted).max()


def alone(folder, tokens):
    """The logits after a text, by a model that has read nothing else."""
    model = lbrx.language_model(folder, cache_dtype="float32")
    return model.engine.prefill([tokens], 1).logits.numpy()


def test_a_text_that_goes_on_is_not_read_again(folder, monkeypatch):
    model, tokens = lbrx.language_model(folder, cache_dtype="float32"), prompt(60)
    model.engine.prefill([tokens[:40]], 20)
    assert model.engine.cached_prefix([tokens]) == 40
    close(model.engine.prefill([tokens], 1).logits.numpy(), alone(folder, tokens))


def test_another_text_begins_again(folder):
    """States know no earlier token, so nothing of a text that differs at its end is kept."""
    model, tokens = lbrx.language_model(folder, cache_dtype="float32"), prompt(40)
    model.engine.prefill([tokens], 8)
    other = [*tokens[:39], 5]
    assert model.engine.cached_prefix([other]) == 0
    close(model.engine.prefill([other], 8).logits.numpy(), alone(folder, other))
    state = model.engine.prefill([tokens], 8)
    model.engine.decode(lbrx.tensor([[7]]), state.positions)  # not noted as one of the text
    assert model.engine.cached_prefix([[*tokens, 9]]) == 0
    close(model.engine.prefill([[*tokens, 9]], 1).logits.numpy(), alone(folder, [*tokens, 9]))


def test_in_chunks_and_batches(folder, monkeypatch):
    texts = [prompt(count) for count in (3, 19, 1, 11)]
    single = np.concatenate([alone(folder, text) for text in texts])
    monkeypatch.setattr(engine, "CHUNK", 20)
    model = lbrx.language_model(folder, cache_dtype="float32")
    close(model.engine.prefill(texts, 4).logits.numpy(), single)


def test_a_larger_cache_takes_the_states_along(folder, monkeypatch):
    monkeypatch.setattr(engine, "CAPACITY_STEP", 16)
    monkeypatch.setattr(engine, "MIN_CAPACITY", 16)
    model, tokens = lbrx.language_model(folder, cache_dtype="float32"), prompt(50)
    model.engine.prefill([tokens[:12]], 2)
    before = model.engine.cache
    close(model.engine.prefill([tokens], 1).logits.numpy(), alone(folder, tokens))
    assert model.engine.cache is not before


def test_a_snapshot_brings_states_back(folder):
    model, tokens = lbrx.language_model(folder, cache_dtype="float32"), prompt(20)
    found = model.engine.prefill([tokens], 10)
    cache = model.engine.cache
    kept = cache.snapshot()
    lbrx.eval(*kept)
    first = model.engine.decode(lbrx.tensor([[9]]), found.positions).logits.numpy().copy()
    model.engine.decode(lbrx.tensor([[8]]), found.positions + 1).logits.numpy()
    cache.restore(kept)
    again = model.engine.decode(lbrx.tensor([[9]]), found.positions).logits.numpy()
    np.testing.assert_array_equal(again, first)


def test_generated_text_is_the_same_on_both_devices(folder):
    texts = [
        lbrx.language_model(folder, device=device, cache_dtype="float32").generate(
            prompt(9), max_tokens=6, ignore_end=True
        )
        for device in ("metal", "cpu")
    ]
    assert texts[0].tokens == texts[1].tokens


def test_prompt_caches_are_refused(folder, tmp_path):
    model = lbrx.language_model(folder)
    model.generate(prompt(5), max_tokens=2)
    with pytest.raises(lbrx.LbrxError, match="recurrent layers, whose states are not saved"):
        model.save_prompt(tmp_path / "p")


def test_the_memory_plan_counts_states(make_model):
    model = lbrx.language_model(make_model("mamba2", head_dim=16))
    sizes = [(128 + 2 * 2 * 12) * 3 * 4, 8 * 16 * 12 * 4]
    assert model.memory.cache == 2 * sum(sizes)  # no layer has keys
