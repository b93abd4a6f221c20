"""Every architecture against a float64 model: at once, in chunks, by token and in batches."""

from __future__ import annotations

import json
import math

import device_memory
import numpy as np
import pytest
import reference_model
import stored_cases

import lbrx
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.merging.lora import applied
from lbrx.models import architectures, engine
from lbrx.models.architectures import llama
from lbrx.models.config import read_rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
KINDS: dict[str, dict[str, object]] = {
    "cohere": {},
    "cohere2": {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "ernie4_5": {},
    "exaone4": {},
    "gemma": {},
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt2": {},
    "gpt_oss": {},
    "granite": {},
    "granitemoehybrid": {},
    "lfm2": {},
    "mamba2": {"head_dim": 16},
    "olmo2": {},
    "olmo3": {"layer_types": ["full_attention", "sliding_attention"], "rope_theta": 500.0},
    "qwen3_next": {},
    "seed_oss": {},
    "starcoder2": {"sliding_window": 5},
    "llama": {},
    "mistral": {"sliding_window": 6},
    "mixtral": {"sliding_window": 6},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0},
    "gemma3_text": {
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 100.0,
        "query_pre_attn_scalar": 20,
    },
    "phi3": {"partial_rotary_factor": 0.75},
    "smollm3": {"no_rope_layer_interval": 2},
}


FAR, NEAR = "full_attention", "sliding_attention"
# Less common settings of config.json: (architecture, settings, changes to the oracle's settings).
VARIANTS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "windows and positions in some layers": (
        "exaone4",
        {"sliding_window": 5, "layer_types": [FAR, NEAR]},
        {},
    ),
    "biases of queries": ("glm4_moe", {"attention_bias": True}, {}),
    "one expert": ("mixtral", {"num_experts_per_tok": 1}, {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "windows from a layer on": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {},
    ),
    "listed windows, usual caps": (
        "gemma2",
        {"layer_types": [FAR, NEAR], "sliding_window": 4},
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "windows that are not used": ("qwen2", {"sliding_window": 5, "max_window_layers": 0}, {}),
    "a RoPE for each kind of layer": (
        "gemma3_text",
        {
            "sliding_window": 5,
            "sliding_window_pattern": 2,
            "rope_theta": None,
            "rope_parameters": {
                FAR: {"rope_theta": 500.0, "rope_type": "linear", "factor": 3.0},
                NEAR: {"rope_theta": 100.0, "rope_type": "default"},
            },
        },
        {"rope_theta": 500.0, "rope_local_base_freq": 100.0, "_factors": 3.0},
    ),
    "a rotated part of each head": (
        "phi3",
        {"partial_rotary_factor": None, "rope_parameters": {"rope_theta": 90.0, "partial_rotary_factor": 0.5}},
        {"rope_theta": 90.0, "partial_rotary_factor": 0.5},
    ),
}  # fmt: skip


def expected(folder, tokens, **changes):
    model = lbrx.open_model(folder).canonical()
    weights = {name: model[name].astype("float32").numpy() for name in model}
    return reference_model.logits({**model.config, **changes}, weights, tokens)


def close(given, wanted, tolerance=2e-2):
    """The default tolerance is for a float16 cache."""
    least = device_memory.tolerance(0, 2e-2)
    assert given.shape == wanted.shape
    error = np.abs(given - wanted).max() / np.abs(wanted).max()
    assert error < max(tolerance, least), f"differs by {error:.2g}"


def prompt(count, seed=0):
    return np.random.default_rng([count, seed]).integers(2, 600, count).tolist()


def test_every_architecture_is_tested():
    """Here, or against stored results (test_stored_architectures.py)."""
    stored = {stored_cases.kind_of(case) for case in stored_cases.CASES}
    assert architectures.known() == sorted({*KINDS, *stored})


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_found_by_the_name_of_its_module(kind):
    assert architectures.find(kind).__module__ == f"{architectures.__name__}.{kind}"


def test_a_new_architecture_is_one_network(make_model, monkeypatch):
    """A folder with Hugging Face's names needs no table in lbrx.files.formats."""

    class Scaled(llama.Network):
        def embed(self, tokens):
            return super().embed(tokens) * 3

    folder, tokens = make_model("llama", tie_word_embeddings=False), prompt(9)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "scaled"}))
    monkeypatch.setattr(architectures, "find", {"scaled": Scaled}.__getitem__)
    model = lbrx.open_model(folder)
    weights = {name: model[name].numpy() for name in model}
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] * 3
    wanted = reference_model.logits(config, weights, tokens)
    opened = lbrx.language_model(folder, cache_dtype="float32")
    close(opened.engine.all_logits(tokens).numpy(), wanted, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind, make_model):
    folder = make_model(kind, **KINDS[kind])
    tokens = prompt(17)
    wanted = expected(folder, tokens)
    model = lbrx.language_model(folder, cache_dtype="float32")
    close(model.engine.all_logits(tokens).numpy(), wanted, 1e-4)
    state = model.engine.prefill([tokens[:12]], 5)
    close(state.logits.numpy()[0], wanted[11], 1e-4)
    for i in range(12, 17):
        token = lbrx.tensor([[tokens[i]]], dtype="int64")
        state = model.engine.decode(token, state.positions)
        close(state.logits.numpy()[0], wanted[i], 1e-4)
    assert state.best.item() == wanted[16].argmax()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_and_caches(dtype, make_model):
    folder = make_model("llama", dtype)
    tokens = prompt(9)
    model = lbrx.language_model(folder, cache_dtype=dtype)
    wide = 2e-2 if dtype == "float16" else 1e-1
    close(model.engine.all_logits(tokens).numpy(), expected(folder, tokens), wide)


def test_on_the_cpu_device(make_model):
    folder = make_model("llama")
    tokens = prompt(8)
    wanted = expected(folder, tokens)
    model = lbrx.language_model(folder, device="cpu", cache_dtype="float32")
    state = model.engine.prefill([tokens[:5]], 3)
    for i in range(5, 8):
        token = lbrx.tensor([[tokens[i]]], device="cpu")
        state = model.engine.decode(token, state.positions)
        close(state.logits.numpy()[0], wanted[i], 1e-4)


@pytest.fixture(params=[False, True], ids=["encoded", "replayed"])
def replays(request, monkeypatch):
    """Whether chunks of prompts are replayed, as on GPUs."""
    monkeypatch.setattr(engine.Engine, "_replays_chunks", lambda self: request.param)


@pytest.mark.parametrize("count", [21, 23])
def test_a_prompt_in_chunks_is_the_prompt_at_once(make_model, monkeypatch, replays, count):
    folder, tokens = make_model("llama"), prompt(count)
    whole = lbrx.language_model(folder).engine.prefill([tokens], 1).logits.numpy()
    monkeypatch.setattr(engine, "CHUNK", 7)
    model = lbrx.language_model(folder)
    found = model.engine.prefill([tokens], 1)
    close(found.logits.numpy(), whole, 1e-5)
    assert found.positions.numpy().tolist() == [[count]]


def test_a_batch_is_its_texts(make_model, monkeypatch, replays):
    folder = make_model("llama")
    texts = [prompt(count) for count in (3, 19, 1, 11)]
    single = [lbrx.language_model(folder).engine.prefill([text], 4) for text in texts]
    monkeypatch.setattr(engine, "CHUNK", 8)
    together = lbrx.language_model(folder).engine.prefill(texts, 4)
    close(together.logits.numpy(), np.concatenate([s.logits.numpy() for s in single]), 1e-4)
    np.testing.assert_array_equal(together.positions.numpy()[:, 0], [3, 19, 1, 11])


@pytest.mark.parametrize("name", VARIANTS)
def test_settings(name, make_model):
    kind, settings, told = VARIANTS[name]
    folder, tokens = make_model(kind, **settings), prompt(13)
    wanted = expected(folder, tokens, **told)
    model = lbrx.language_model(folder, cache_dtype="float32")
    close(model.engine.all_logits(tokens).numpy(), wanted, 1e-4)


NOT_IN_GGUF = {"windows from a layer on", "biases of queries"}


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - NOT_IN_GGUF))
def test_settings_in_gguf(name, make_model, tmp_path):
    from tiny_models import to_gguf_file

    kind, settings, told = VARIANTS[name]
    folder, tokens = make_model(kind, **settings), prompt(13)
    to_gguf_file(folder, tmp_path / "m.gguf")
    model = lbrx.language_model(tmp_path / "m.gguf", cache_dtype="float32")
    close(model.engine.all_logits(tokens).numpy(), expected(folder, tokens, **told), 1e-4)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hidden_act", "relu"),
        ("sliding_window", "all"),
        ("sliding_window", -1),
        ("num_experts_per_tok", 4),
        ("num_local_experts", 0),
    ],
)
def test_invalid_settings(setting, value, make_model):
    with pytest.raises(FormatError, match=setting):
        lbrx.language_model(make_model("mixtral", **{setting: value}))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# By transformers 5.22.2, for heads of 16 and a base of 100.
SCALINGS: dict[str, tuple[dict[str, object], list[float], float]] = {
    "yarn": (YARN, [1, 1.17647, 1.42857, 1.81818, 2.5, 4, 4, 4], 1.13863),
    "turns": (
        {**YARN, "beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 1.3},
        [1, 1.14286, 1.33333, 1.6, 2, 2.66667, 4, 4],
        1.3,
    ),
    "untruncated": (
        {**YARN, "truncate": False},
        [1, 1.22852, 1.59242, 2.26263, 3.90697, 4, 4, 4],
        1.13863,
    ),
    "scales": (
        {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
        [1, 1.17647, 1.42857, 1.81818, 2.5, 4, 4, 4],
        1.0394,
    ),
    "llama3": (
        {**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 32},
        [1, 1.39666, 2.48365, 4, 4, 4, 4, 4],
        1.0,
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rope(name):
    scaling, factors, amplitude = SCALINGS[name]
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256}
    rope = read_rope({**sizes, "rope_theta": 100.0, "rope_scaling": scaling})
    np.testing.assert_allclose(rope.factors, factors, rtol=1e-5)
    assert rope.amplitude == pytest.approx(amplitude, rel=1e-5)


@pytest.mark.parametrize(("context", "name"), [(None, "short"), (64, "long")])
def test_longrope_has_factors_for_each_context(context, name, make_model):
    lists = {"short": np.linspace(1, 2, 8).tolist(), "long": np.linspace(1, 9, 8).tolist()}
    scaling = {"type": "longrope", **{f"{key}_factor": value for key, value in lists.items()}}
    folder = make_model("phi3", rope_scaling=scaling, original_max_position_embeddings=16)
    tokens = prompt(13)
    amplitude = math.sqrt(1 + math.log(64 / 16) / math.log(16))
    wanted = expected(folder, tokens, _factors=lists[name], _amplitude=amplitude)
    model = lbrx.language_model(folder, context=context, cache_dtype="float32")
    assert model.engine.context == (context or 16)
    close(model.engine.all_logits(tokens).numpy(), wanted, 1e-4)


def test_rope_of_llama3(make_model, tmp_path):
    from tiny_models import to_gguf_file

    folder = make_model("llama", rope_scaling=LLAMA3, rope_theta=500.0)
    tokens = prompt(20)
    length, size = 16, 16
    waves = 2 * np.pi * 500.0 ** (np.arange(0, size, 2) / size)
    blend = np.clip((length / waves - 1) / 3, 0, 1)
    factors = 1 / ((1 - blend) / 8 + blend)
    wanted = expected(folder, tokens, _factors=factors)
    # A GGUF stores the factors themselves; these are not a published Llama 3's.
    to_gguf_file(folder, tmp_path / "m.gguf")
    for path in (folder, tmp_path / "m.gguf"):
        model = lbrx.language_model(path, cache_dtype="float32")
        close(model.engine.all_logits(tokens).numpy(), wanted, 1e-4)


def test_interleaved_rows_of_a_gguf(make_model, tmp_path):
    """A Llama GGUF has the rows of queries and keys interleaved, and RoPE uses them so."""
    from tiny_models import to_gguf_file

    folder, tokens = make_model("llama"), prompt(9)
    to_gguf_file(folder, tmp_path / "m.gguf")
    model = lbrx.language_model(tmp_path / "m.gguf", cache_dtype="float32")
    close(model.engine.all_logits(tokens).numpy(), expected(folder, tokens), 1e-4)
    assert model.tokenizer.encode("Hello, world! 123") == lbrx.language_model(
        folder
    ).tokenizer.encode("Hello, world! 123")


def test_a_gguf_with_an_adapter_of_some_queries(make_model, make_adapter, tmp_path):
    """An adapter's result has Hugging Face's order of rows, while others are interleaved."""
    from tiny_models import to_gguf_file

    folder, tokens = make_model("llama"), prompt(9)
    to_gguf_file(folder, tmp_path / "m.gguf")
    lora = str(make_adapter(folder, "model.layers.1.self_attn.q_proj"))
    lbrx.merge(applied(str(folder), lora), tmp_path / "merged", report=False, device="cpu")
    model = lbrx.merge(applied(str(tmp_path / "m.gguf"), lora))
    found = lbrx.language_model(model, cache_dtype="float32").engine.all_logits(tokens).numpy()
    close(found, expected(tmp_path / "merged", tokens), 1e-4)


def test_what_the_cache_has_is_not_computed_again(make_model, monkeypatch):
    folder, tokens = make_model("llama"), prompt(20)
    model = lbrx.language_model(folder)
    model.engine.prefill([tokens[:12]], 8)
    ordinary, computed = model.engine.decode, []

    def counted(token, positions):
        computed.append(token.item())
        return ordinary(token, positions)

    # A few tokens go through the step for one token.
    monkeypatch.setattr(model.engine, "decode", counted)
    again = model.engine.prefill([tokens], 1)
    assert computed == tokens[12:]
    assert model.engine.cached_tokens == tokens
    close(
        again.logits.numpy(),
        lbrx.language_model(folder).engine.prefill([tokens], 1).logits.numpy(),
        1e-5,
    )
    other = [*tokens[:6], 5, 6, 7]
    close(
        model.engine.prefill([other], 1).logits.numpy(),
        lbrx.language_model(folder).engine.prefill([other], 1).logits.numpy(),
        1e-5,
    )


@pytest.mark.full
def test_in_halves_on_an_apple_chip(make_model, monkeypatch, tmp_path):
    folder, tokens = make_model("llama"), prompt(20)
    wanted = expected(folder, tokens)
    metal.context().close()
    with monkeypatch.context() as patch:
        patch.setenv("SOFTMETAL_PROFILE", "apple-m1")
        patch.setenv("LBRX_CACHE", str(tmp_path))
        model = lbrx.language_model(folder)
        assert model.engine.network.dtype is dt.float16
        close(model.engine.all_logits(tokens).numpy(), wanted)
        state = model.engine.prefill([tokens[:18]], 4)
        for i in (18, 19):
            state = model.engine.decode(lbrx.tensor([[tokens[i]]]), state.positions)
        close(state.logits.numpy()[0], wanted[-1])
        metal.context().close()
