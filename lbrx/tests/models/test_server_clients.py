"""`lbrx serve` with the Python clients of OpenAI, Anthropic and Ollama, where they are installed."""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path

import numpy as np
import pytest
from test_server import ASK, folder, model, server

__all__ = ["folder", "model", "server"]  # fixtures
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "serve_clients.md"
BLOCKS = re.findall(r"```python\nfrom (\w+)(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize(("package", "block"), BLOCKS, ids=[package for package, _ in BLOCKS])
def test_the_page_of_clients(package, block, server, capsys):
    """Each block prints an answer, with this server's address and model in it."""
    pytest.importorskip(package)
    address = server.url.removeprefix("http://")
    source = f"from {package}{block}".replace("127.0.0.1:8080", address).replace("smollm2", "tiny")
    exec(compile(source, "block", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


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


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "maximum": 999}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return person.keys() == {"name", "age"} and person["name"] in ("Ann", "Bob")


def test_schemas(server):
    """JSON of a schema from each client, also from a class and in a stream."""
    openai, pydantic = pytest.importorskip("openai"), pytest.importorskip("pydantic")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    wanted = {"model": "tiny", "messages": ASK, "max_tokens": 200}
    json_schema = {"name": "person", "schema": SCHEMA, "strict": True}
    form = {"type": "json_schema", "json_schema": json_schema}
    made = client.chat.completions.create(response_format=form, n=2, seed=1, **wanted)
    assert all(is_person(choice.message.content) for choice in made.choices)
    assert all(choice.finish_reason == "stop" for choice in made.choices)
    parts = client.chat.completions.create(response_format=form, stream=True, **wanted)
    assert is_person("".join(part.choices[0].delta.content or "" for part in parts))

    class Person(pydantic.BaseModel):
        name: typing.Literal["Ann", "Bob"]
        old: bool

    parsed = client.chat.completions.parse(response_format=Person, **wanted)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    anthropic = pytest.importorskip("anthropic")
    other = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    output = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert is_person(other.messages.create(output_config=output, **wanted).content[0].text)
    ollama = pytest.importorskip("ollama").Client(host=server.url)
    said = ollama.chat(model="tiny", messages=ASK, format=SCHEMA, options={"num_predict": 200})
    assert is_person(said.message.content)
    regex = {"extra_body": {"response_format": {"type": "regex", "regex": "[ab]{3}"}}}
    three = client.completions.create(model="tiny", prompt="Hello", max_tokens=9, **regex)
    assert set(three.choices[0].text) <= {"a", "b"}
    wrong = {"name": "x", "schema": {"type": "array", "uniqueItems": True}}
    form = {"type": "json_schema", "json_schema": wrong}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.chat.completions.create(response_format=form, **wanted)


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ABOUT = {"name": "weather", "description": "The weather of a city."}
FUNCTION = {"type": "function", "function": {**ABOUT, "parameters": PARAMETERS}}


def is_weather(name: str, values: dict) -> bool:
    return (name, values.keys(), values["city"] in ("Paris", "Rome")) == (
        "weather",
        {"city", "days"},
        True,
    )


def test_tools_openai(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    wanted = {"model": "tiny", "max_tokens": 300, "seed": 3, "tools": [FUNCTION]}
    one = {"parallel_tool_calls": False}
    made = client.chat.completions.create(messages=ASK, tool_choice="required", **one, **wanted)
    (choice,) = made.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert is_weather(call.function.name, json.loads(call.function.arguments))
    named = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(messages=ASK, tool_choice=named, **one, **wanted) as stream:
        for _ in stream:
            pass
        (last,) = stream.get_final_completion().choices
    (call,) = last.message.tool_calls
    assert is_weather(call.function.name, json.loads(call.function.arguments))
    assert last.finish_reason == "tool_calls"
    # The result goes back, and the model goes on with text.
    answered = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    talk = [*ASK, last.message.model_dump(exclude_none=True), answered]
    free = client.chat.completions.create(messages=talk, tool_choice="none", **wanted)
    assert free.choices[0].message.tool_calls is None
    plain = client.chat.completions.create(messages=ASK, model="tiny", max_tokens=1)
    assert free.usage.prompt_tokens > plain.usage.prompt_tokens


def test_tools_anthropic(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tool = {**ABOUT, "input_schema": PARAMETERS}
    any_tool = {"type": "any", "disable_parallel_tool_use": True}
    wanted = {"model": "tiny", "max_tokens": 300, "tools": [tool], "tool_choice": any_tool}
    made = client.messages.create(messages=ASK, **wanted)
    assert made.stop_reason == "tool_use"
    assert all(is_weather(block.name, block.input) for block in made.content)
    with client.messages.stream(messages=ASK, **wanted) as stream:
        last = stream.get_final_message()
    assert last.stop_reason == "tool_use"
    assert all(is_weather(block.name, block.input) for block in last.content)
    use = last.content[0]
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "5"}],
    }
    talk = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump() for block in last.content]},
        {"role": "user", "content": [result]},
    ]
    free = client.messages.create(messages=talk, **{**wanted, "tool_choice": {"type": "none"}})
    assert free.stop_reason in ("end_turn", "max_tokens")


def test_tools_ollama(server):
    """Tools are free there: the model of random weights writes text, and may not fail."""
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url)
    options = {"num_predict": 30, "seed": 1}
    made = client.chat(model="tiny", messages=ASK, tools=[FUNCTION], options=options)
    parts = list(
        client.chat(model="tiny", messages=ASK, tools=[FUNCTION], options=options, stream=True)
    )
    assert "".join(part.message.content for part in parts) == made.message.content
    call = {"function": {"name": "weather", "arguments": {"city": "Rome", "days": 2}}}
    talk = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert client.chat(model="tiny", messages=talk, options=options).prompt_eval_count > (
        client.chat(model="tiny", messages=ASK, options=options).prompt_eval_count
    )


def test_responses(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    wanted = {"model": "tiny", "temperature": 0, "max_output_tokens": 12}
    chat = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=12, temperature=0
    ).choices[0]
    whole = client.responses.create(input=ASK, **wanted)
    assert whole.output_text == chat.message.content
    assert (
        client.responses.create(input=ASK[0]["content"], **wanted).output_text == whole.output_text
    )
    assert whole.status == ("incomplete" if chat.finish_reason == "length" else "completed")
    assert 0 < whole.usage.output_tokens <= 12
    with client.responses.stream(input=ASK, **wanted) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert kinds[-1] == f"response.{whole.status}"
    form = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    made = client.responses.create(input=ASK, model="tiny", text=form)
    assert is_person(made.output_text)
    tool = {"type": "function", **ABOUT, "parameters": PARAMETERS}
    tools = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    with client.responses.stream(input=ASK, model="tiny", **tools) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_response().output
    assert is_weather(call.name, json.loads(call.arguments))
    answered = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    item = call.model_dump(include={"type", "call_id", "name", "arguments"})
    more = client.responses.create(input=[*ASK, item, answered], **wanted)
    assert more.usage.input_tokens > whole.usage.input_tokens
    for bad in ({"previous_response_id": "x"}, {"store": True}, {"input": [{"type": "odd"}]}):
        with pytest.raises(openai.BadRequestError, match=next(iter(bad))):
            client.responses.create(**{"input": ASK, **wanted, **bad})


def test_embeddings(server, model):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    texts = ["Hello, world!", "naïve café " * 40]
    made = client.embeddings.create(model="tiny", input=texts)
    for text, one in zip(texts, made.data, strict=True):
        tokens = model.prompt_tokens(text)
        expected = mean_state(model, tokens)
        np.testing.assert_allclose(one.embedding, expected, atol=2e-5)
    floats = client.embeddings.create(model="tiny", input=texts[0], encoding_format="float")
    np.testing.assert_allclose(floats.data[0].embedding, made.data[0].embedding, atol=1e-7)
    np.testing.assert_allclose(model.embed(texts[1]), made.data[1].embedding, atol=2e-5)
    assert made.usage.prompt_tokens == sum(len(model.prompt_tokens(text)) for text in texts)
    ids = client.embeddings.create(model="tiny", input=[model.prompt_tokens(texts[0])])
    assert ids.data[0].embedding == made.data[0].embedding
    for bad in ({"input": []}, {"input": "word " * 2000}, {"dimensions": 3}, {"input": [[-1]]}):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(**{"model": "tiny", "input": "Hello", **bad})
    ollama = pytest.importorskip("ollama").Client(host=server.url)
    same = ollama.embed(model="tiny", input=texts)
    np.testing.assert_allclose(same.embeddings[1], made.data[1].embedding, atol=1e-6)


def mean_state(model, tokens) -> np.ndarray:
    """The mean in float64 of states that are known to be right, as their products with the head are
    the logits."""
    network, engine = model.engine.network, model.engine
    last = engine.final_states(tokens).numpy().astype(np.float64)
    scores = engine.all_logits(tokens).numpy()
    head = network.head.numpy().astype(np.float64)
    np.testing.assert_allclose(last @ head.T, scores, atol=1e-3)
    mean = last.mean(axis=0)
    return mean / np.linalg.norm(mean)


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


def test_langchain(server):
    langchain = pytest.importorskip("langchain_openai")
    wanted = {"base_url": server.url + "/v1", "api_key": "none", "model": "tiny", "max_retries": 0}
    model = langchain.ChatOpenAI(max_tokens=12, temperature=0, **wanted)
    whole = model.invoke("Hello, world!")
    assert "".join(part.content for part in model.stream("Hello, world!")) == whole.content != ""
    assert whole.usage_metadata["output_tokens"] <= 12
    longer = langchain.ChatOpenAI(max_tokens=300, seed=3, **wanted)
    schema = {"title": "person", "description": "A person.", **SCHEMA}
    assert is_person(json.dumps(longer.with_structured_output(schema).invoke("Ann")))
    tools = longer.bind_tools([FUNCTION], tool_choice="weather", parallel_tool_calls=False)
    (call,) = tools.invoke("Hello").tool_calls
    assert is_weather(call["name"], call["args"])
    vectors = langchain.OpenAIEmbeddings(check_embedding_ctx_length=False, **wanted)
    assert np.linalg.norm(vectors.embed_query("Hello")) == pytest.approx(1, abs=1e-5)


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
