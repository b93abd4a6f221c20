"""One model for several texts: in batches, in turns, from threads, and after an interrupt."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference_model
from device_memory import tolerance

import lbrx
from lbrx.models import LanguageModel
from lbrx.models.engine import Engine

PROMPTS = ["Hello, world! It's", "naïve café", "12345 o'clock"]
FREELY = {"max_tokens": 12, "ignore_end": True}


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama", max_position_embeddings=1024)


@pytest.fixture(scope="module")
def model(folder) -> LanguageModel:
    return lbrx.language_model(folder)


@pytest.fixture(scope="module")
def alone(folder) -> list[list[int]]:
    """The tokens that each prompt gives with a model of its own."""
    return [lbrx.language_model(folder).generate(prompt, **FREELY).tokens for prompt in PROMPTS]


def test_streams_by_turns(model, alone):
    streams = [model.stream(prompt, **FREELY) for prompt in PROMPTS]
    going = list(streams)
    while going:
        going = [stream for stream in going if next(stream, None) is not None]
    assert [stream.completion.tokens for stream in streams] == alone


def test_a_stream_goes_on_after_others(model, alone):
    stream = model.stream(PROMPTS[0], **FREELY)
    next(stream)
    assert [made.tokens for made in model.generate(PROMPTS, **FREELY)] == alone
    next(stream)
    model.perplexity("something else")
    list(stream)
    assert stream.completion.tokens == alone[0]


def test_a_stream_is_broken_off(model, alone):
    next(model.stream(PROMPTS[1], **FREELY))
    assert model.generate(PROMPTS[0], **FREELY).tokens == alone[0]


def test_threads(model, alone, monkeypatch):
    """Texts are generated one after the other, so no prompt is computed twice."""
    ordinary, read = Engine.prefill, []

    def counted(self, prompts, room):
        read.append(prompts)
        return ordinary(self, prompts, room)

    monkeypatch.setattr(Engine, "prefill", counted)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda prompt: model.generate(prompt, **FREELY), PROMPTS * 2))
    assert [one.tokens for one in made] == alone * 2
    assert len(read) == len(made)


def test_streams_in_threads(model, alone):
    def tokens(prompt):
        stream = model.stream(prompt, **FREELY)
        list(stream)
        return stream.completion.tokens

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(tokens, PROMPTS * 2)) == alone * 2


@pytest.mark.parametrize(
    "method", ["reserve", "prefill", "decode", "_prefill_in_chunks", "_tensor"]
)
def test_an_interrupt_leaves_a_model_that_works(method, model, alone, monkeypatch):
    ordinary = getattr(Engine, method)

    def interrupted(self, *given):
        result = ordinary(self, *given)
        signal.raise_signal(signal.SIGINT)
        return result

    for prompt in (PROMPTS[1], PROMPTS[1] + " word" * 80):
        with monkeypatch.context() as patch:
            patch.setattr(Engine, method, interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.generate(
                    [prompt] if method != "_prefill_in_chunks" else [prompt, "a"], **FREELY
                )
        assert model.generate(PROMPTS[0], **FREELY).tokens == alone[0]


def test_a_text_that_grows_makes_few_caches(folder):
    engine = lbrx.language_model(folder).engine
    made = {engine.reserve(1, tokens).capacity for tokens in range(100, 1024, 100)}
    assert made == {256, 512, 1024}


def test_texts_longer_than_a_cache_was_made_for(folder, rng):
    """The cache grows and keeps its tokens."""
    tokens = rng.integers(2, 600, 300).tolist()
    weights = lbrx.open_model(folder).canonical()
    rows = reference_model.logits(
        weights.config, {name: weights[name].numpy() for name in weights}, tokens
    )[:-1]
    peaks = rows.max(axis=-1)
    totals = peaks + np.log(np.exp(rows - peaks[:, None]).sum(axis=-1))
    wanted = rows[np.arange(299), tokens[1:]] - totals
    model = lbrx.language_model(folder, cache_dtype="float32")
    np.testing.assert_allclose(model.log_probabilities(tokens), wanted, atol=tolerance(1e-3, 1e-1))
    assert model.log_probabilities(tokens[:1]) == model.log_probabilities([]) == []


@pytest.mark.parametrize("count", [7, 8, 9, 15, 16, 21])
def test_every_token_beyond_the_context_has_a_value(count, folder, rng):
    """The pieces of a text share a token, which the earlier piece scores."""
    tokens = rng.integers(2, 600, count).tolist()
    short = lbrx.language_model(folder, context=8)
    pieces = [tokens[:8], tokens[7:15], tokens[14:]]
    wanted = [x for piece in pieces for x in short.log_probabilities(piece)]
    found = short.log_probabilities(tokens)
    assert len(found) == count - 1
    np.testing.assert_allclose(found, wanted, atol=tolerance(1e-3, 1e-1))


def test_a_batch_ends_text_by_text_with_the_context(folder):
    short = lbrx.language_model(folder, context=24)
    long = "Hello, world! It's 12345"
    made = short.generate([long, "a"], max_tokens=500, ignore_end=True)
    for prompt, one in zip([long, "a"], made, strict=True):
        assert one.tokens == short.generate(prompt, max_tokens=500, ignore_end=True).tokens
        assert len(one.tokens) + len(short.tokenizer.encode(prompt)) == 24


def test_held_text_is_shown_when_the_context_ends(folder):
    """The end of a text may look like the beginning of a stop string."""
    short = lbrx.language_model(folder, context=24)
    whole = short.generate("Hello", max_tokens=500, ignore_end=True).text
    made = short.generate("Hello", max_tokens=500, ignore_end=True, stop=whole[-2:] + "☃")
    assert (made.text, made.finish_reason) == (whole, "length")


def test_log_probabilities_are_of_the_tokens(folder, monkeypatch):
    model = lbrx.language_model(folder)
    free = model.generate(PROMPTS[0], **FREELY)
    monkeypatch.setattr(model, "end_tokens", frozenset({free.tokens[4]}))
    made = model.generate(PROMPTS[0], max_tokens=12, logprobs=True)
    assert made.finish_reason == "end"
    assert len(made.logprobs) == len(made.tokens) == free.tokens.index(free.tokens[4])


def test_prompts_of_every_kind(model):
    tokens = model.tokenizer.encode(PROMPTS[0])
    wanted = model.generate(PROMPTS[0], **FREELY).tokens
    assert model.generate(tokens, **FREELY).tokens == wanted
    assert [m.tokens for m in model.generate([tokens, tokens], **FREELY)] == [wanted] * 2
    assert "".join(model.stream(np.array(tokens), **FREELY)) == model.tokenizer.decode(wanted)
    talk = [{"role": "user", "content": "Hello"}]
    assert model.generate(talk, **FREELY).tokens == model.chat(talk, **FREELY).tokens


def test_cached_tokens_are_counted(folder):
    model = lbrx.language_model(folder)
    first = model.generate(PROMPTS[0], **FREELY).timing
    again = model.generate(PROMPTS[0], **FREELY).timing
    assert (first.cached_tokens, again.cached_tokens) == (0, first.prompt_tokens - 1)


def test_a_batch_that_does_not_fit_is_refused(folder):
    model = lbrx.language_model(folder)
    model.engine.memory = type(model.memory)(
        **{**vars(model.memory), "limit": model.memory.total + 1}
    )
    with pytest.raises(
        lbrx.LbrxError, match=r"9 texts of 256 tokens need a cache .*fewer prompts at once"
    ):
        model.generate(["a"] * 9, max_tokens=2)
