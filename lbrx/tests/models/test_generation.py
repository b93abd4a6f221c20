"""Generation with a tiny random model: sampling, streams, stop strings, caches, bad input."""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import fields

import numpy as np
import pytest
import reference_model
from device_memory import tolerance

import lbrx
from lbrx.cli import generate
from lbrx.models import LanguageModel, constraints
from lbrx.models.generation import GenerationOptions, OptionKeywords, _Session
from lbrx.models.sampling import Sampler, Sampling, candidates, draw, largest, penalise_repetition
from lbrx.models.tokenizer import TextStream

PROMPT = "Hello, world! It's"


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama")


@pytest.fixture(scope="module")
def model(folder) -> LanguageModel:
    return lbrx.language_model(folder)


def test_greedy_text_is_the_reference_models(model, folder):
    tokens = model.tokenizer.encode(PROMPT)
    weights = lbrx.open_model(folder).canonical()
    arrays = {name: weights[name].numpy() for name in weights}
    wanted = list(tokens)
    for _ in range(6):
        scores = reference_model.logits(weights.config, arrays, wanted)
        wanted.append(int(scores[-1].argmax()))
    made = model.generate(PROMPT, max_tokens=6, ignore_end=True)
    assert made.tokens == wanted[len(tokens) :]
    assert made.finish_reason == "length"
    assert made.text == model.tokenizer.decode(made.tokens)


@pytest.mark.parametrize(
    "options", [{"max_tokens": n} for n in (1, 2, 3, 20)] + [{"stop": "e"}, {"logprobs": True}]
)
@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "naïve café", "a"]], ids=["single", "batch"])
def test_decoding_ahead_changes_nothing(prompt, options, folder, monkeypatch):
    """A penalty too small to change a logit leaves the choice to the host, which prevents it."""
    wanted = {"max_tokens": 20, **options}
    ordinary, started = _Session.decode_ahead, []

    def counted(session, prediction):
        started.append(prediction)
        return ordinary(session, prediction)

    monkeypatch.setattr(_Session, "decode_ahead", counted)
    ahead = lbrx.language_model(folder).generate(prompt, **wanted)
    assert bool(started) == (wanted["max_tokens"] > 2)
    started.clear()
    careful = lbrx.language_model(folder).generate(prompt, **wanted, repetition_penalty=1 + 1e-12)
    assert not started
    for one, other in zip(*(np.atleast_1d(made) for made in (ahead, careful)), strict=True):
        for name in ("text", "tokens", "finish_reason", "logprobs"):
            assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("seen", [1, 2, 5])
def test_tokens_decoded_ahead_are_not_saved(seen, model, folder, tmp_path):
    """The prompt cache of an abandoned stream has no tokens beyond those that were shown."""
    stream = model.stream(PROMPT, max_tokens=20, ignore_end=True)
    for _ in range(seen):
        next(stream)
    stream._parts.close()
    model.save_prompt(tmp_path / "prompt")
    text = model.engine.cached_tokens[:]
    other = lbrx.language_model(folder)
    assert other.restore_prompt(tmp_path / "prompt") == len(text)
    longer = [*text, *model.tokenizer.encode(" café")]
    made = other.generate(longer, max_tokens=8, ignore_end=True)
    assert made.timing.cached_tokens == len(text)
    assert (
        made.tokens
        == lbrx.language_model(folder).generate(longer, max_tokens=8, ignore_end=True).tokens
    )


def test_a_stream_is_the_text(model):
    whole = model.generate(PROMPT, max_tokens=40, temperature=1.5, seed=3)
    stream = model.stream(PROMPT, max_tokens=40, temperature=1.5, seed=3)
    parts = list(stream)
    assert "".join(parts) == whole.text
    assert len(parts) > 3
    assert stream.completion.tokens == whole.tokens
    assert stream.timing.prompt_tokens == len(model.tokenizer.encode(PROMPT))


def test_seeds(model):
    def text(seed):
        return model.generate(PROMPT, max_tokens=20, temperature=1.0, seed=seed).tokens

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_batch_equals_single_texts(model):
    prompts = [PROMPT, "a", "naïve café — 漢字", "12345 o'clock"]
    together = model.generate(prompts, max_tokens=10, ignore_end=True)
    for prompt, made in zip(prompts, together, strict=True):
        assert made.tokens == model.generate(prompt, max_tokens=10, ignore_end=True).tokens
    assert model.generate([]) == []
    drawn = {"max_tokens": 10, "temperature": 1.0, "seed": 4}
    first, *others, again = model.generate([*prompts, PROMPT], **drawn)
    for prompt, made in zip(prompts, [first, *others], strict=True):
        assert made.tokens == model.generate(prompt, **drawn).tokens
    assert again.tokens != first.tokens


def test_texts_of_a_batch_end_on_their_own(model):
    options = {"temperature": 2.0, "seed": 5, "max_tokens": 30, "ignore_end": True}
    first, second = model.generate([PROMPT, "a"], **options)
    stop = model.tokenizer.decode(first.tokens[4:7])
    assert stop in first.text
    assert stop not in second.text
    stopped, other = model.generate([PROMPT, "a"], stop=stop, **options)
    assert (stopped.text, stopped.finish_reason) == (first.text[: first.text.index(stop)], "stop")
    assert len(stopped.tokens) < len(first.tokens)
    assert (other.text, other.tokens) == (second.text, second.tokens)
    assert other.finish_reason == "length"


def test_stop_strings_are_not_shown(model):
    whole = model.generate(PROMPT, max_tokens=30, temperature=1.5, seed=9, ignore_end=True).text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    stream = model.stream(
        PROMPT, max_tokens=30, temperature=1.5, seed=9, ignore_end=True, stop=[stop, "☃☃"]
    )
    assert "".join(stream) == whole[: whole.index(stop)]
    assert stream.completion.finish_reason == "stop"


def test_the_end_token_ends(folder, monkeypatch):
    model = lbrx.language_model(folder)
    first = model.generate(PROMPT, max_tokens=1, ignore_end=True).tokens[0]
    monkeypatch.setattr(model, "end_tokens", frozenset({first}))
    made = model.generate(PROMPT)
    assert (made.text, made.tokens, made.finish_reason) == ("", [], "end")


def test_log_probabilities(model, folder):
    made = model.generate(PROMPT, max_tokens=5, logprobs=True, ignore_end=True)
    tokens = model.tokenizer.encode(PROMPT) + made.tokens
    every = model.log_probabilities(tokens)
    np.testing.assert_allclose(made.logprobs, every[-5:], atol=1e-2)
    weights = lbrx.open_model(folder).canonical()
    scores = reference_model.logits(
        weights.config, {name: weights[name].numpy() for name in weights}, tokens
    )
    wanted = [
        row[token] - math.log(np.exp(row).sum())
        for row, token in zip(scores, tokens[1:], strict=False)
    ]
    np.testing.assert_allclose(every, wanted, atol=tolerance(2e-2, 1e-1))
    assert model.perplexity(PROMPT) == pytest.approx(
        math.exp(-np.mean(model.log_probabilities(model.tokenizer.encode(PROMPT))))
    )


def test_a_prompt_cache_survives(folder, tmp_path):
    first, second = lbrx.language_model(folder), lbrx.language_model(folder)
    wanted = first.generate(PROMPT, max_tokens=8, ignore_end=True)
    first.save_prompt(tmp_path / "cache")
    count = second.restore_prompt(tmp_path / "cache")
    assert count == len(first.engine.cached_tokens) >= len(first.tokenizer.encode(PROMPT))
    made = second.generate(PROMPT, max_tokens=8, ignore_end=True)
    assert made.tokens == wanted.tokens
    assert made.timing.cached_tokens == wanted.timing.prompt_tokens - 1
    with pytest.raises(lbrx.FormatError, match=r"another model, .*delete it, or name another"):
        lbrx.language_model(folder, cache_dtype="float32").restore_prompt(tmp_path / "cache")
    with pytest.raises(
        lbrx.FormatError, match="is not a prompt cache: give a file that save_prompt wrote"
    ):
        second.restore_prompt(folder / "model.safetensors")
    with pytest.raises(lbrx.LbrxError, match="nothing to save"):
        lbrx.language_model(folder).save_prompt(tmp_path / "other")
    with pytest.raises(lbrx.LbrxError, match="give the name of an ordinary file"):
        first.save_prompt(tmp_path)
    with pytest.raises(lbrx.LbrxError, match=r"\d+ tokens do not fit the context of 5"):
        lbrx.language_model(folder, context=5).restore_prompt(tmp_path / "cache")
    damaged = bytearray((tmp_path / "cache").read_bytes())
    damaged[-100] ^= 1
    (tmp_path / "cache").write_bytes(damaged)
    with pytest.raises(lbrx.FormatError, match="is damaged: delete it"):
        second.restore_prompt(tmp_path / "cache")
    assert second.generate(PROMPT, max_tokens=8, ignore_end=True).tokens == wanted.tokens


def changed(folder, target, name, change):
    """A copy of the model with one tensor changed."""
    shutil.copytree(folder, target)
    model = lbrx.open_model(folder)
    values = {each: model[each].numpy().copy() for each in model}
    change(values[name])
    tensors = {each: lbrx.tensor(array, device="cpu") for each, array in values.items()}
    lbrx.save(target / "model.safetensors", tensors)
    return target


def test_a_prompt_cache_is_of_one_model(folder, tmp_path):
    """A fine-tuned model has most of its bytes in common with the original."""

    def more(weight):
        weight *= 1.01

    other = changed(folder, tmp_path / "other", "model.layers.1.mlp.up_proj.weight", more)
    model = lbrx.language_model(folder)
    model.generate(PROMPT, max_tokens=1)
    model.save_prompt(tmp_path / "cache")
    with pytest.raises(lbrx.FormatError, match="the cache of another model"):
        lbrx.language_model(other).restore_prompt(tmp_path / "cache")


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite(value, options, folder, tmp_path):
    def damage(weight):
        weight[3, 5] = value

    target = changed(folder, tmp_path / "other", "model.layers.0.mlp.gate_proj.weight", damage)
    model = lbrx.language_model(target)
    with pytest.raises(lbrx.FormatError, match=r"logits are not finite after \d+ tokens"):
        model.generate(PROMPT, **options)
    with pytest.raises(lbrx.FormatError, match="weights are damaged"):
        model.perplexity(PROMPT)


def test_a_conversation_reads_only_what_is_new(model):
    talk = [{"role": "user", "content": "Hello"}]
    answer = model.chat(talk, max_tokens=6, ignore_end=True)
    cached = list(model.engine.cached_tokens)
    begin = model.tokenizer.encode("<user>user: Hello<|end|><user>assistant:", special=False)
    assert cached == begin + answer.tokens[:-1]
    talk += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "again"}]
    text = f"<user>user: Hello<|end|><user>assistant: {answer.text}<|end|><user>user: again<|end|><user>assistant:"
    tokens = model.tokenizer.encode(text, special=False)
    second = model.chat(talk, max_tokens=2)
    assert second.timing.prompt_tokens == len(tokens)
    same = [a == b for a, b in zip(cached, tokens, strict=False)]
    shared = (*same, False).index(False)
    assert second.timing.cached_tokens == shared >= len(begin)


def test_a_text_ends_with_the_context(folder):
    model = lbrx.language_model(folder, context=24)
    made = model.generate(PROMPT, max_tokens=500, ignore_end=True)
    assert len(made.tokens) + len(model.tokenizer.encode(PROMPT)) == 24
    assert made.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ("word " * 200, {}, r"prompt has \d+ tokens, and the context is 64: shorten it"),
        ("bad \udcff bytes", {}, "not valid UTF-8 at character 4"),
        ([700], {}, "700 is not a token id: give integers from 0 to 619"),
        ([5, "a"], {}, "'a' is not a token id"),
        ([5, -1], {}, "-1 is not a token id"),
        (b"bytes", {}, "b'bytes' is not a prompt: give a text, token ids or messages"),
        (None, {}, "None is not a prompt"),
        ([{"role": "user"}], {}, "is not a message: give"),
        ([{"role": "user", "content": "a"}, "b"], {}, "'b' is not a message"),
        ("a", {"temperature": -1}, "temperature=-1: give a number, 0 or more"),
        ("a", {"top_p": 2}, "top_p=2: give a number, 0 to 1"),
        ("a", {"min_p": "x"}, "min_p='x'"),
        ("a", {"top_k": 2.5}, "top_k=2.5: give an integer, 0 or more"),
        ("a", {"temperature": math.nan}, "temperature=nan"),
        ("a", {"temperature": math.inf}, "temperature=inf"),
        ("a", {"repetition_penalty": 0}, "repetition_penalty=0: give a number, 0.001 to 1,000"),
        ("a", {"seed": -1}, "seed=-1: give an integer, 0 or more"),
        ("a", {"seed": "x"}, "seed='x'"),
        ("a", {"max_tokens": 0}, "max_tokens=0: give an integer, 1 or more"),
        ("a", {"max_tokens": True}, "max_tokens=True"),
        ("a", {"stop": 5}, "stop=5: give strings that are not empty"),
        ("a", {"stop": ""}, "stop=''"),
        (
            "a",
            {"tempreature": 1},
            "'tempreature' is not an option: give some of frequency_penalty, .*top_p",
        ),
    ],
    ids=str,
)
def test_refuses(prompt, options, message, model):
    with pytest.raises(lbrx.LbrxError, match=message):
        model.stream(prompt, **options)


def test_every_option_has_a_type():
    """Editors and type checkers know the options by `OptionKeywords`."""
    named = {item.name for kind in (GenerationOptions, Sampling) for item in fields(kind)}
    assert OptionKeywords.__annotations__.keys() == (named - {"sampling", "rules"}) | set(
        constraints.NAMES
    )
    arguments = argparse.ArgumentParser()
    generate.add_arguments(arguments)
    given = vars(arguments.parse_args(["model"]))
    assert OptionKeywords.__annotations__.keys() - given == {"logprobs", "logit_bias"}


def test_text_never_ends_within_a_character(model):
    text = "naïve café — 漢字かな 🎉🏽 ПРИВЕТ\n\n  ok"
    stream = TextStream(model.tokenizer)
    parts = [stream.add(token) for token in model.tokenizer.encode(text)]
    assert "".join(parts) + stream.end() == text
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)
    cut = TextStream(model.tokenizer)
    tokens = model.tokenizer.encode("漢")
    assert "".join(cut.add(token) for token in tokens[:-1]) == ""
    assert "\N{REPLACEMENT CHARACTER}" in cut.end()


# ---- sampling ----


def chosen(logits, count=4000, **settings):
    """The frequency of each token."""
    sampler = Sampler(Sampling(seed=7, **settings))
    row = np.array(logits, np.float32)
    return np.bincount([sampler.choose(row, ()) for _ in range(count)], minlength=len(row)) / count


def test_probabilities_are_softmax():
    logits = np.array([1.0, 0.0, -1.0, 2.0])
    for temperature in (0.5, 1.0, 2.0):
        powers = np.exp(logits / temperature)
        shares = chosen(logits, temperature=temperature)
        np.testing.assert_allclose(shares, powers / powers.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 3}),
        ({"top_k": 1}, {3}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.85}, {0, 3}),
        ({"top_p": 0.0}, {3}),
        ({"min_p": 0.3}, {0, 3}),
        ({"min_p": 1.0}, {3}),
        ({"top_k": 3, "top_p": 0.6}, {3}),
    ],
    ids=str,
)
def test_candidates(settings, kept):
    # The probabilities are 0.237, 0.087, 0.032 and 0.644.
    tokens, _ = candidates(
        np.array([1, 0, -1, 2], np.float32), Sampling(temperature=1.0, **settings)
    )
    assert set(tokens.tolist()) == kept


def test_candidates_of_a_large_vocabulary(rng):
    """With a few candidates, and with more than are sorted at first."""
    for spread in (4.0, 0.01):
        logits = (rng.standard_normal(5000) * spread).astype(np.float32)
        chances = np.exp(logits.astype(np.float64))
        order = np.argsort(-chances)
        count = 1 + np.searchsorted(np.cumsum(chances[order]) / chances.sum(), 0.7)
        tokens, _ = candidates(logits, Sampling(temperature=1.0, top_p=0.7))
        assert set(tokens.tolist()) == set(order[:count].tolist())


@pytest.mark.parametrize("size", [1, 255, 256, 1000])
def test_drawing_by_cumulated_weights(size, rng):
    chances = rng.random(size).astype(np.float32) ** 4
    chances[1::3] = 0
    sums = np.cumsum(chances.astype(np.float64))
    for number in (*rng.random(50), 0.0, 1 - 1e-16):
        wanted = np.searchsorted(sums, number * sums[-1], "right")
        assert draw(chances, number) == min(wanted, np.flatnonzero(chances)[-1])
    ending = np.concatenate([chances, np.zeros(300, np.float32)])
    assert draw(ending, 1.0) == np.flatnonzero(chances)[-1]


@pytest.mark.parametrize("count", [1, 7, 40, 999, 5000])
@pytest.mark.parametrize("size", [1, 40, 4999, 5000])
def test_largest(count, size, rng):
    values = rng.standard_normal(size).astype(np.float32)
    for given in (values, values.round(), np.zeros_like(values)):
        found = largest(given, count)
        assert len(set(found.tolist())) == min(count, size)
        wanted = np.sort(given)[-count:]
        np.testing.assert_array_equal(np.sort(given[found]), wanted)


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e5, 1e300])
def test_temperatures_beyond_float32(temperature):
    logits = np.array([1.0, -50.0, 1.5, -np.inf], np.float32)
    _, chances = candidates(logits, Sampling(temperature=temperature))
    np.testing.assert_allclose(
        chances, [0, 0, 1, 0] if temperature < 1 else [1, 1, 1, 0], atol=1e-3
    )


def test_repetition_is_penalised_once():
    logits = np.array([2, -1, 3, 0], np.float32)
    np.testing.assert_array_equal(penalise_repetition(logits, [0, 1, 1, 0], 2.0), [1, -2, 3, 0])
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    assert sampler.choose(logits, [2]) == 0
    assert sampler.choose(logits, []) == 2
