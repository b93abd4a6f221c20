"""Runs the server on a socket until a signal ends it."""

from __future__ import annotations

import signal
import socket
import sys

import uvicorn

from lbrx.errors import LbrxError
from lbrx.serve.app import make_app
from lbrx.serve.gate import Gate, GateRules
from lbrx.serve.models import Models

MOST_CONNECTIONS = 1024
LAST_SECONDS = 60  # in which requests may end after a signal


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, before the model is loaded."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=kind)
    except (OSError, OverflowError) as problem:
        raise LbrxError(f"{host} port {port}: {problem}: give another --port") from None


def serve(models: Models, rules: GateRules, bound: socket.socket) -> None:
    """Answer requests until SIGTERM or Ctrl-C, and then finish those that run."""
    config = uvicorn.Config(
        Gate(make_app(models), rules),
        log_level="warning",
        lifespan="off",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=LAST_SECONDS,
        server_header=False,
    )
    # uvicorn raises the signal again when it has ended.
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    address = f"[{rules.host}]" if ":" in rules.host else rules.host
    url = f"http://{address}:{bound.getsockname()[1]}"
    names = ", ".join(service.name for service in models)
    print(f"serving {names} at {url}", file=sys.stderr, flush=True)
    try:
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
