"""`lbrx serve` as a process of its own, over HTTP as clients send it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from tempfile import TemporaryFile

import pytest
from waiting import until

import lbrx
from lbrx.cli import main
from lbrx.serve.gate import GateRules
from lbrx.serve.problems import RequestError

pytestmark = pytest.mark.skipif(
    find_spec("starlette") is None or find_spec("uvicorn") is None,
    reason="needs the packages starlette and uvicorn",
)
ASK = [{"role": "user", "content": "Hello, world!"}]
OPENAI, ANTHROPIC, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])

    def send(self, path: str, body=None, **headers: str) -> tuple[int, str]:
        """The status and the text of an answer."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        request = urllib.request.Request(
            self.url + path,
            data.encode() if isinstance(data, str) else data,
            {"Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read().decode()

    def ask(self, path: str, **body) -> dict:
        status, text = self.send(path, {"model": "tiny", **body})
        assert status == 200, text
        return json.loads(text)


@contextmanager
def running(folder, *options: str):
    command = [sys.executable, "-m", "lbrx", "serve", str(folder), "--port", "0", "--quiet"]
    with (
        TemporaryFile() as log,  # a pipe that nobody reads would fill, and stop the server
        subprocess.Popen([*command, *options], stderr=log) as process,
    ):

        def written() -> str:
            return os.pread(log.fileno(), 1 << 20, 0).decode()

        try:
            serving = re.compile(r"serving .* at (http://\S+)\n")
            until(lambda: serving.search(written()) or process.poll() is not None, "it serves")
            found = serving.search(written())
            assert found, written()
            yield Server(process, found[1])
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert status == 0


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama", max_position_embeddings=1024)


@pytest.fixture(scope="module")
def server(folder):
    with running(folder, "--name", "tiny", "--context", "512", "--deterministic") as one:
        yield one


@pytest.fixture(scope="module")
def model(folder):
    return lbrx.language_model(folder, context=512)


def events(text: str) -> list[dict]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line[:6] == "data: "]
    return [json.loads(line) for line in data if line != "[DONE]"]


def test_the_same_answer_in_every_api(server, model):
    expected = model.chat(ASK, max_tokens=12)
    chat = server.ask(OPENAI, messages=ASK, max_tokens=12, temperature=0)
    assert chat["choices"][0]["message"]["content"] == expected.text
    reason = "length" if expected.finish_reason == "length" else "stop"
    assert chat["choices"][0]["finish_reason"] == reason
    tokens = model.count_tokens(ASK)
    assert chat["usage"]["prompt_tokens"] == tokens
    assert chat["usage"]["completion_tokens"] == len(expected.tokens)
    message = server.ask(ANTHROPIC, messages=ASK, max_tokens=12, temperature=0)
    assert message["content"] == [{"type": "text", "text": expected.text}]
    used = message["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == tokens
    options = {"num_predict": 12, "temperature": 0}
    ollama = server.ask(OLLAMA, messages=ASK, stream=False, options=options)
    assert ollama["message"]["content"] == expected.text
    assert (ollama["done_reason"], ollama["eval_count"]) == (reason, len(expected.tokens))
    plain = model.generate("Hello", max_tokens=6).text
    made = server.ask("/v1/completions", prompt="Hello", max_tokens=6, temperature=0)
    assert made["choices"][0]["text"] == plain
    options = {"num_predict": 6, "temperature": 0}
    raw = server.ask("/api/generate", prompt="Hello", raw=True, stream=False, options=options)
    assert raw["response"] == plain


def test_streams(server):
    wanted = {"model": "tiny", "messages": ASK, "max_tokens": 12, "temperature": 0}
    whole = server.ask(OPENAI, **wanted)
    said = whole["choices"][0]["message"]["content"]
    usage = {"stream_options": {"include_usage": True}}
    _, text = server.send(OPENAI, {**wanted, "stream": True, **usage})
    assert text.endswith("data: [DONE]\n\n")
    *parts, last = events(text)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    deltas = [part["choices"][0] for part in parts]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert "".join(one["delta"].get("content", "") for one in deltas) == said
    assert [one["finish_reason"] for one in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    _, text = server.send(ANTHROPIC, {**wanted, "stream": True})
    kinds = re.findall("^event: (.*)$", text, re.MULTILINE)
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(one["delta"].get("text", "") for one in events(text) if "delta" in one) == said
    options = {"num_predict": 12, "temperature": 0}
    _, text = server.send(OLLAMA, {"model": "tiny", "messages": ASK, "options": options})
    lines = [json.loads(line) for line in text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == said
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def test_several_answers_with_log_probabilities(server, model):
    body = {"prompt": ["Hello", [5, 6, 7]], "max_tokens": 5, "n": 2, "seed": 3, "logprobs": 2}
    made = server.ask("/v1/completions", **body)
    assert [choice["index"] for choice in made["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in made["choices"]]
    assert texts[0] != texts[1]
    for choice in made["choices"]:
        scores = choice["logprobs"]
        # A token may be part of a character, which the text alone shows whole.
        whole = "\N{REPLACEMENT CHARACTER}" not in "".join(scores["tokens"])
        assert not whole or "".join(scores["tokens"]).startswith(choice["text"])
        sizes = [len(token) for token in scores["tokens"]]
        assert scores["text_offset"] == [sum(sizes[:place]) for place in range(len(sizes))]
        for token, score, likely in zip(
            scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True
        ):
            if not any("\N{REPLACEMENT CHARACTER}" in name for name in (token, *likely)):
                assert score <= max(likely.values()) <= 0
                assert likely.get(token, score) == score
    _, text = server.send("/v1/completions", {**body, "stream": True})
    streamed = ["", "", "", ""]
    for part in events(text):
        for choice in part["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_among_others_as_alone(server):
    def ask(number: int):
        made = server.ask(
            "/v1/completions",
            prompt=f"{number} plus 1 is" + " and so on" * number,
            max_tokens=12,
            temperature=0.8 * (number % 2),
            seed=number,
            logprobs=1,
        )
        return made["choices"]

    alone = [ask(number) for number in range(9)]
    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(ask, range(9))) == alone


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def strict_tool(schema) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}


def schema_format(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}


BAD = [
    (OPENAI, {"messages": []}, 400),
    (OPENAI, {"messages": ASK, "temperature": -3}, 400),
    (OPENAI, {"messages": ASK, "max_tokens": -1}, 400),
    (OPENAI, {"messages": ASK, "n": 10**6}, 400),
    (OPENAI, {"messages": ASK, "logit_bias": {"x": 1}}, 400),
    (OPENAI, {"messages": ASK, "model": "other"}, 404),
    (OPENAI, {"messages": ASK, "tools": [{"type": "function"}]}, 400),
    (OPENAI, {"messages": ASK, "tools": 3}, 400),
    (OPENAI, {"messages": ASK, "tools": [TOOL], "tool_choice": "perhaps"}, 400),
    (OPENAI, {"messages": ASK, "tool_choice": "required"}, 400),
    (OPENAI, {"messages": ASK, "tools": [TOOL], "tool_choice": {"type": "function"}}, 400),
    (OPENAI, {"messages": ASK, "tools": [strict_tool({"not": {}})]}, 400),
    (OPENAI, {"messages": [{"role": "assistant", "tool_calls": [{"function": 3}]}]}, 400),
    (OPENAI, {"messages": ["Hello"]}, 400),
    (OPENAI, {"messages": ASK, "response_format": {"type": "xml"}}, 400),
    (OPENAI, {"messages": ASK, "response_format": {"type": "regex", "regex": "("}}, 400),
    (OPENAI, {"messages": ASK, "response_format": {"type": "grammar", "grammar": "start: x"}}, 400),
    (OPENAI, {"messages": ASK, "response_format": {"type": "json_schema"}}, 400),
    (OPENAI, {"messages": ASK, "response_format": schema_format({"type": "word"})}, 400),
    (OPENAI, {"messages": ASK, "response_format": schema_format({"not": {}})}, 400),
    (OPENAI, {"messages": [{"role": "user", "content": "word " * 2000}]}, 400),
    (OPENAI, b"{", 400),
    (OPENAI, b"[" * 100_000, 400),
    (OPENAI, b"\xff" * (17 << 20), 413),
    ("/v1/completions", {"prompt": {}}, 400),
    ("/v1/completions", {"prompt": [-1]}, 400),
    (ANTHROPIC, {"messages": ASK}, 400),
    (ANTHROPIC, {"messages": ASK, "max_tokens": 1, "tools": [{"type": "bash_20250124"}]}, 400),
    (ANTHROPIC, {"messages": ASK, "max_tokens": 1, "tool_choice": {"type": "any"}}, 400),
    (ANTHROPIC, {"messages": [{"role": "user", "content": [3]}], "max_tokens": 1}, 400),
    (
        ANTHROPIC,
        {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1},
        400,
    ),
    (ANTHROPIC, {"messages": ASK, "max_tokens": 1, "model": "other"}, 404),
    (ANTHROPIC, {"messages": ASK, "max_tokens": 1, "output_config": {"format": 3}}, 400),
    (OLLAMA, {"messages": ASK, "options": 3}, 400),
    (OLLAMA, {"messages": ASK, "format": "xml"}, 400),
    (OLLAMA, {"messages": ASK, "format": {"type": "word"}}, 400),
    ("/api/generate", {"prompt": ""}, 400),
    ("/v1/nothing", {}, 404),
]


@pytest.mark.parametrize(("path", "body", "status"), BAD, ids=range(len(BAD)))
def test_errors_have_the_bodies_of_their_api(server, path, body, status):
    got, text = server.send(path, body)
    assert got == status, text
    told = json.loads(text)
    if path.startswith("/api/"):
        assert isinstance(told["error"], str)
    elif path == ANTHROPIC:
        assert told["type"] == "error"
        assert told["error"].keys() == {"type", "message"}
    else:
        assert told["error"].keys() == {"message", "type", "param", "code"}
    assert server.send("/health")[0] == 200


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/metrics", "/health"])
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}],
    ids=str,
)
def test_foreign_pages_are_refused(server, path, headers):
    assert server.send(path, **headers)[0] == 403
    assert server.send(path, Origin=server.url)[0] == 200


def test_lists(server):
    (one,) = json.loads(server.send("/v1/models")[1])["data"]
    assert one["id"] == "tiny"
    assert json.loads(server.send("/v1/models/tiny")[1]) == one
    assert server.send("/v1/models/other")[0] == 404
    (tag,) = json.loads(server.send("/api/tags")[1])["models"]
    assert tag["name"] == "tiny"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slot(server, stream):
    def cancelled() -> float:
        return float(re.search(r"cancelled_total\S* (\d+)", server.send("/metrics")[1])[1])

    before = cancelled()
    body = {"prompt": "Hello", "max_tokens": 500, "logit_bias": {"1": -100}, "stream": stream}
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + data)
        time.sleep(0.2)
    until(lambda: cancelled() > before, "the text is cancelled")
    until(lambda: 'running{model="tiny"} 0' in server.send("/metrics")[1], "its slot is free")


def test_keys_and_origins():
    rules = GateRules("127.0.0.1", ["secret", "other"], ["http://localhost:3000"])
    host = {b"host": b"localhost:8080"}
    rules.check("/v1/models", {**host, b"authorization": b"Bearer secret"})
    rules.check("/v1/models", {**host, b"x-api-key": b"other"})
    rules.check("/health", {**host, b"origin": b"http://localhost:3000"})
    for headers, status in (
        (host, 401),
        ({**host, b"authorization": b"Bearer wrong"}, 401),
        ({**host, b"authorization": b"Basic secret"}, 401),
        ({b"host": b"[::1", b"x-api-key": b"secret"}, 403),
        ({b"host": b"127.0.0.1.evil.example", b"x-api-key": b"secret"}, 403),
        ({**host, b"origin": b"http://localhost:3001", b"x-api-key": b"secret"}, 403),
    ):
        with pytest.raises(RequestError) as caught:
            rules.check("/v1/models", headers)
        assert caught.value.status == status


def test_a_signal_lets_requests_end(folder, model):
    """The server answers what runs, and ends with status 0."""
    with running(folder, "--name", "tiny", "--context", "512") as one:
        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": "Hello", "max_tokens": 300, "temperature": 0}
            answer = pool.submit(one.ask, "/v1/completions", **body)
            while (
                'lbrx_texts_running{model="tiny"} 1' not in one.send("/metrics")[1]
                and not answer.done()
            ):
                time.sleep(0.01)
            one.process.send_signal(signal.SIGTERM)
            made = answer.result()
        assert made["choices"][0]["text"] == model.generate("Hello", max_tokens=300).text


def test_several_models_and_adapters(folder, make_model, make_adapter):
    """Each answers under its name as it would alone, also all at once; a text names the first."""
    other = make_model("qwen3_moe", max_position_embeddings=1024)
    path = make_adapter(folder, "model.layers.0.self_attn.q_proj")
    options = ["--also", f"other={other}", "--adapter", f"tuned={path}:40", "--deterministic"]
    alone = {
        "tiny": lbrx.language_model(folder, context=512),
        "other": lbrx.language_model(other, context=512),
        "tuned": lbrx.language_model(folder, context=512, adapters=[f"{path}:40"]),
    }
    body = {"prompt": "Hello", "max_tokens": 20, "temperature": 0}
    expected = {name: model.generate("Hello", max_tokens=20).text for name, model in alone.items()}
    assert len(set(expected.values())) == 3
    with running(folder, "--name", "tiny", "--context", "512", *options) as one:
        listed = json.loads(one.send("/v1/models")[1])["data"]
        assert [each["id"] for each in listed] == list(expected)
        tags = json.loads(one.send("/api/tags")[1])["models"]
        assert [each["name"] for each in tags] == list(expected)
        names = [*expected] * 4
        with ThreadPoolExecutor(12) as pool:
            made = list(
                pool.map(lambda name: one.ask("/v1/completions", **{**body, "model": name}), names)
            )
        for name, answer in zip(names, made, strict=True):
            assert answer["model"] == name
            assert answer["choices"][0]["text"] == expected[name]
        first = json.loads(one.send("/v1/completions", body)[1])
        assert first["choices"][0]["text"] == expected["tiny"]
        status, text = one.send("/v1/completions", {**body, "model": "unknown"})
        assert status == 404
        assert "use tiny, other, tuned" in text


def test_two_models_of_one_name(folder, capsys):
    assert main(["serve", str(folder), "--port", "0", "--also", str(folder), "--quiet"]) == 1
    assert "two models are called model" in capsys.readouterr().err


def test_a_port_in_use(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "lbrx", "serve", str(folder), "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "give another --port" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
