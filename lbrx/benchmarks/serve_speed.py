"""Speed of `lbrx serve`, as clients see it over HTTP, beside `generate` in a process of its own.

    python lbrx/benchmarks/serve_speed.py [MODEL] [--new N] [--prompt N] [--rounds N] [--peer URL]

`--peer` is the address of another server of OpenAI's API that runs on this machine, such as
llama-server or `python -m mlx_lm server`, with the same model: it gets the same requests. Rounds
alternate, and the best of each counts: other work on the machine can only slow them down.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import lbrx

TEXT = "The history of science is the study of the development of science and knowledge. "
REPETITIVE = TEXT * 6  # which the model goes on repeating


@dataclass(frozen=True)
class Answer:
    """When parts of an answer came, in seconds since the request."""

    first: float
    last: float
    tokens: int


@dataclass(frozen=True)
class Server:
    """A server, and the name of its model."""

    label: str
    url: str
    model: str

    def complete(self, prompt: str, new: int) -> Answer:
        """Ask for `new` tokens, whatever they are, and note when they come."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=600)
        bias = {"0": -100, "2": -100}  # SmolLM2's ends of a text
        body = {"model": self.model, "prompt": prompt, "max_tokens": new, "temperature": 0}
        body |= {"stream": True, "logit_bias": bias, "stream_options": {"include_usage": True}}
        head = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), head)
        times, tokens = [], 0
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                data = json.loads(line[6:])
                if data.get("error"):
                    raise SystemExit(f"{self.label}: {data['error']}")
                tokens = (data.get("usage") or {}).get("completion_tokens", tokens)
                times.append(time.perf_counter() - began)
        connection.close()
        if not times:
            raise SystemExit(f"{self.label} at {self.url} gives no stream: is its model loaded?")
        return Answer(times[0], times[-1], tokens)


@contextmanager
def running(model: str, *options: str) -> Iterator[Server]:
    """`lbrx serve` until the end of the block."""
    command = [sys.executable, "-m", "lbrx", "serve", model, "--port", "0", "--name", "m"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"serving .* at (http://\S+)", line):
                    yield Server(" ".join(["lbrx serve", *options]), found[1], "m")
                    break
            else:
                raise SystemExit("lbrx serve does not start")
        finally:
            process.terminate()


def peer_server(url: str) -> Server:
    """Another server, with the first of its models."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", "/v1/models")
    return Server(url, url, json.load(connection.getresponse())["data"][0]["id"])


def together(server: Server, prompts: Sequence[str], new: int) -> float:
    """Tokens a second of requests that are sent at once."""
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda text=text: answers.append(server.complete(text, new)))
        for text in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(each.tokens for each in answers) / max(each.last for each in answers)


def first_beside_long(server: Server, long: str) -> tuple[float, float]:
    """Seconds until the first token of a short request that comes while a long prompt is read, and
    until that of the long one."""
    slow: list[Answer] = []
    reading = threading.Thread(target=lambda: slow.append(server.complete(long, 1)))
    reading.start()
    time.sleep(0.3)
    short = server.complete("Hello", 1).first
    reading.join()
    return short, slow[0].first


def measure(server: Server, new: int, long: int, round_: int) -> dict[str, float]:
    """All figures of a server once. The number of the round makes its prompts new."""
    short = [f"{round_} {number} {TEXT}" for number in range(8)]
    prompt = f"{round_} " + TEXT * (long // 14)
    one = together(server, short[:1], new)
    eight = together(server, short, new)
    beside, alone = first_beside_long(server, prompt + "Then")
    first = server.complete(f"again {prompt}", 1).first
    repeated = server.complete(f"again {prompt}", 1).first
    return {
        "1 client, tok/s": one,
        "8 clients, tok/s": eight,
        "first token of a short request beside a long prompt, s": beside,
        "first token of the long prompt, s": alone,
        "repeated prompt / first time": repeated / first,
    }


def generated(model: lbrx.LanguageModel, new: int) -> float:
    """Tokens a second of `generate`, with its prompt."""
    began = time.perf_counter()
    made = model.generate(f"x {TEXT}", max_tokens=new, ignore_end=True)
    return len(made.tokens) / (time.perf_counter() - began)


def best(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The best figure of each kind."""
    return {
        name: (max if "tok/s" in name else min)(each[name] for each in rounds) for name in rounds[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of the long prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar="URL")
    options = parser.parse_args()
    alone = lbrx.language_model(options.model)
    with ExitStack() as stack:
        shared = ("--parallel", "8", "--context", "4096", "--quiet")
        plain = stack.enter_context(running(options.model, *shared))
        look_up = stack.enter_context(running(options.model, *shared, "--draft", "ngram"))
        servers = [plain, *map(peer_server, options.peer)]
        results: dict[str, list[dict[str, float]]] = {each.label: [] for each in servers}
        generate, repeats = [], []
        for number in range(options.rounds):
            generate.append(generated(alone, options.new))
            for server in servers:
                results[server.label].append(measure(server, options.new, options.prompt, number))
            speeds = [
                together(each, [f"{number} {REPETITIVE}"], options.new) for each in (plain, look_up)
            ]
            repeats.append(speeds[1] / speeds[0])
    print(f"generate: {max(generate):.1f} tok/s")
    for label, rounds in results.items():
        print(label)
        for name, value in best(rounds).items():
            print(f"  {name}: {value:.3g}")
    print(f"look-up on repetitive text: {max(repeats):.2f} times the tokens a second without")


if __name__ == "__main__":
    main()
