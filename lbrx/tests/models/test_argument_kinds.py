"""Arguments of the wrong kind: an error of lbrx's says what to give instead."""

from __future__ import annotations

import pytest

import lbrx

USER = {"role": "user", "content": "Hello"}
WRONG = [None, 5, 2.5, b"Hello", print, {"a": 1}, [None], [[None]], [2.5], {1, 2}, True]


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama")


@pytest.fixture(scope="module")
def model(folder):
    return lbrx.language_model(folder, device="cpu")


@pytest.mark.parametrize("name", [None, 5, b"model", print, ["smollm2"], "", "a\0b", True])
def test_model_names(name):
    with pytest.raises(lbrx.LbrxError, match="give a model's file or folder, or the name of a"):
        lbrx.language_model(name)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"context": value} for value in ("8", 2.5, True, -1, [8])),
        *({"cache_dtype": value} for value in (None, 5, "int3", print, [])),
        *({"device": value} for value in (5, "gpu", print, b"cpu", ["cpu"], "")),
        *({"on_memory_plan": value} for value in (5, "print")),
    ],
    ids=str,
)
def test_options_of_opening(arguments, folder):
    with pytest.raises(lbrx.LbrxError):
        lbrx.language_model(folder, **arguments)


@pytest.mark.parametrize("prompt", WRONG, ids=str)
@pytest.mark.parametrize("method", ["generate", "stream", "chat", "count_tokens"])
def test_prompts(method, prompt, model):
    with pytest.raises(lbrx.LbrxError, match="give"):
        getattr(model, method)(prompt)


@pytest.mark.parametrize("text", [*WRONG, [USER]], ids=str)
def test_texts(text, model):
    with pytest.raises(lbrx.LbrxError, match="give"):
        model.perplexity(text)


@pytest.mark.parametrize("tokens", [*WRONG, "Hello", [USER], "5"], ids=str)
def test_tokens(tokens, model):
    with pytest.raises(lbrx.LbrxError, match="give"):
        model.log_probabilities(tokens)


@pytest.mark.parametrize(
    "message",
    [
        *({"role": role, "content": "x"} for role in (None, 5, b"user", [])),
        *({"role": "user", "content": content} for content in (None, 5, b"x", {"a": 1})),
        *(
            {"role": "user", "content": [part]}
            for part in (5, "x", {"type": "image"}, {"text": "x"})
        ),
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        *({"role": "user"}, {"content": "x"}, "x", 5),
    ],
    ids=str,
)
def test_messages(message, model):
    with pytest.raises(lbrx.LbrxError, match="is not a message: give"):
        model.chat([message])


@pytest.mark.parametrize("path", [None, 5, b"file", print, ["file"], "a\0b"], ids=str)
@pytest.mark.parametrize("method", ["save_prompt", "restore_prompt"])
def test_prompt_files(method, path, model):
    model.generate("Hello", max_tokens=1)
    with pytest.raises(lbrx.LbrxError, match="give"):
        getattr(model, method)(path)


@pytest.mark.parametrize(
    "options",
    [
        *({"max_tokens": value} for value in ("5", 2.5, None, True, 0, [1])),
        *({"temperature": value} for value in ("1", None, [1], -1, float("nan"))),
        *({"top_k": value} for value in ("1", 2.5, -1, None)),
        *({"top_p": value} for value in ("1", 2, None)),
        *({"min_p": value} for value in ("1", -1, None)),
        *({"repetition_penalty": value} for value in ("1", 0, None)),
        *({"seed": value} for value in ("1", 2.5, -1, [1])),
        *({"stop": value} for value in (5, [5], [""], "", b"x", {"a": 1}, None)),
        *({"logprobs": value} for value in ("yes", 5, None)),
        *({"ignore_end": value} for value in ("yes", 5, None)),
        {"unheard_of": 1},
    ],
    ids=str,
)
def test_generation_options(options, model):
    with pytest.raises(lbrx.LbrxError, match="give"):
        model.generate("Hello", **options)
