"""`lbrx serve` with the Python clients of OpenAI, Anthropic and Ollama, where they are installed."""

from __future__ import annotations

import pytest
from test_server import ASK, folder, server

__all__ = ["folder", "server"]  # fixtures


def test_openai(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    wanted = {"model": client.models.list().data[0].id, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(messages=ASK, **wanted)
    usage = {"include_usage": True}
    parts = list(
        client.chat.completions.create(messages=ASK, stream=True, stream_options=usage, **wanted)
    )
    said = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert said == whole.choices[0].message.content
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
    scored = client.chat.completions.create(messages=ASK, logprobs=True, top_logprobs=2, **wanted)
    content = scored.choices[0].logprobs.content
    assert [one.top_logprobs[0].logprob for one in content] == [one.logprob for one in content]
    for bad in ({"temperature": -3}, {"max_tokens": -1}, {"messages": []}):
        with pytest.raises(openai.BadRequestError, match=next(iter(bad))):
            client.chat.completions.create(**{"messages": ASK, **wanted, **bad})
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(messages=ASK, **{**wanted, "model": "other"})
    assert caught.value.code == "model_not_found"


def test_anthropic(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    wanted = {"model": "tiny", "max_tokens": 12, "messages": ASK}
    wanted["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**wanted)
    with client.messages.stream(**wanted) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        last = stream.get_final_message()
    assert last.usage.output_tokens == whole.usage.output_tokens > 0
    assert last.stop_reason == whole.stop_reason
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**wanted, "model": "other"})


def test_ollama(server):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url)
    (name,) = (model.model for model in client.list().models)
    wanted = {"model": name, "messages": ASK, "options": {"num_predict": 12, "temperature": 0}}
    whole = client.chat(**wanted)
    parts = list(client.chat(stream=True, **wanted))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count > 0
    raw = client.generate(model=name, prompt="Hello", raw=True, options={"num_predict": 3})
    assert raw.eval_count == 3
    with pytest.raises(ollama.ResponseError):
        client.chat(model="other", messages=ASK)
