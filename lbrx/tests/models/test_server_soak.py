"""A server among clients that send rubbish, trickle bytes, go away and come back: every good request
is answered as it would be alone, no slot stays taken, and nothing leaks. A few seconds by default,
minutes in the `full` test.
"""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from test_server import ASK, OPENAI, Server, folder, running
from waiting import until

__all__ = ["folder"]  # a fixture
GOOD = [
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 20, "temperature": 0}),
    ("/v1/completions", {"prompt": "one two " * 40, "max_tokens": 9, "temperature": 1, "seed": 5}),
    (OPENAI, {"messages": ASK, "max_tokens": 15, "temperature": 0.7, "seed": 2}),
    (OPENAI, {"messages": ASK, "max_tokens": 40, "temperature": 0,
              "response_format": {"type": "regex", "regex": "[ab]{9}"}}),
    ("/v1/embeddings", {"input": "naïve café " * 30}),
]  # fmt: skip


def said(answer: dict) -> object:
    """What has to be the same each time."""
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice.get("text") or choice["message"]["content"], choice["finish_reason"]
    return answer["data"]


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def request(body: bytes, path: str = OPENAI) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def send_rubbish(server: Server, rng: random.Random) -> None:
    with connect(server) as one:
        one.sendall(rng.randbytes(rng.randint(1, 3000)) + b"\r\n\r\n")
        one.settimeout(1)
        with suppress(OSError):  # it may close or wait for more
            one.recv(100)


def send_bad_json(server: Server, rng: random.Random) -> None:
    body = bytes(rng.choices(b'{}[]",:0ae\\', k=rng.randint(1, 200)))
    status, _ = server.send(OPENAI, body)
    assert 400 <= status < 500


def trickle(server: Server, rng: random.Random) -> None:
    """Bytes one by one, and then no more."""
    whole = request(json.dumps({"model": "tiny", "messages": ASK}).encode())
    with connect(server) as one:
        for place in range(rng.randint(1, len(whole) - 1)):
            one.sendall(whole[place : place + 1])


def go_away(server: Server, rng: random.Random) -> None:
    """In a stream or in the queue, by closing or by a reset."""
    body = {"model": "tiny", "messages": ASK, "max_tokens": 300, "stream": rng.random() < 0.7}
    body["logit_bias"] = {"1": -100}
    with connect(server) as one:
        one.sendall(request(json.dumps(body).encode()))
        time.sleep(rng.random() * 0.2)
        if rng.random() < 0.5:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


RUDE = (send_rubbish, send_bad_json, trickle, go_away)


class Clients:
    """Threads that use the server until the time is over."""

    def __init__(self, server: Server, expected: list[object], seconds: float) -> None:
        self.server, self.expected = server, expected
        self.end = time.monotonic() + seconds
        self.problems: list[str] = []
        self.answered = 0

    def good(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            number = rng.randrange(len(GOOD))
            path, body = GOOD[number]
            status, text = self.server.send(path, {"model": "tiny", **body})
            if status != 200 or said(json.loads(text)) != self.expected[number]:
                self.problems.append(f"{path} {body}: {status} {text}")
            self.answered += 1

    def rude(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            try:
                rng.choice(RUDE)(self.server, rng)
            except (ConnectionError, TimeoutError):
                pass
            except Exception as problem:
                self.problems.append(repr(problem))

    def run(self) -> None:
        targets = [self.good] * 3 + [self.rude] * 4
        threads = [
            threading.Thread(target=target, args=(seed,)) for seed, target in enumerate(targets)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def resources(server: Server) -> tuple[int, int]:
    """The open files and the memory in use of the server's process."""
    process = Path("/proc", str(server.process.pid))
    memory = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert memory is not None
    return len(list((process / "fd").iterdir())), int(memory[1]) * 1024


def settle(server: Server) -> None:
    """Wait until no text runs or waits, which has to come."""
    idle = re.compile(r"running\S+ 0\n(.*\n)*lbrx_texts_waiting\S+ 0\n")
    until(lambda: idle.search(server.send("/metrics")[1]), "no text runs or waits")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("seconds", [4, pytest.param(180, marks=pytest.mark.full)])
@pytest.mark.parametrize("draft", [[], ["--draft", "ngram"]], ids=["plain", "ngram"])
def test_soak(folder, seconds, draft):
    options = ["--name", "tiny", "--context", "512", "--parallel", "3", "--deterministic", *draft]
    with running(folder, *options) as server:
        expected = [said(server.ask(path, **body)) for path, body in GOOD]
        Clients(server, expected, 2).run()
        settle(server)
        files, memory = resources(server)
        clients = Clients(server, expected, seconds)
        clients.run()
        settle(server)
        assert not clients.problems
        assert clients.answered > 0
        # The system closes connections a little later.
        until(lambda: resources(server)[0] <= files, f"at most {files} files are open")
        assert resources(server)[1] < memory + (64 << 20)
        assert [said(server.ask(path, **body)) for path, body in GOOD] == expected
