"""What a request must pass before the server looks at it: host, origin and key."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lbrx.serve.problems import RequestError, body_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = {"localhost", "127.0.0.1", "::1"}
OPEN_PATHS = {"/health", "/"}
"""Paths that need no key, as the files of the page, which asks for one."""
PAGE = "/page/"
ALLOWED = b"authorization, content-type, x-api-key, anthropic-version, anthropic-beta"


@dataclass(frozen=True)
class GateRules:
    """Who may send requests."""

    host: str
    """The address that the server is bound to."""
    keys: Sequence[str] = ()
    """Where there are any, a request needs one of them."""
    origins: Sequence[str] = ()
    """Pages of these origins may send requests, besides the server's own."""

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Raise RequestError for a request that may not pass.

        On loopback, a page of another site could reach the server by a name of its own that
        resolves to 127.0.0.1, so the name is checked as well as the page's origin.
        """
        name = headers.get(b"host", b"").decode("latin-1")
        if self.host in LOOPBACK and _host_name(name) not in LOOPBACK:
            raise RequestError(403, "the request is for another host: use 127.0.0.1 or localhost")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin != f"http://{name}" and origin not in self.origins:
            raise RequestError(403, "pages of this origin may not use the server: --cors allows it")
        is_open = path in OPEN_PATHS or path.startswith(PAGE)
        if self.keys and not is_open and not self._has_key(headers):
            raise RequestError(401, "the key is missing or wrong: send Authorization: Bearer KEY")

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        # Every key is compared, each in a time that does not depend on the first difference.
        return sum(hmac.compare_digest(given, key.encode()) for key in self.keys) > 0


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class Gate:
    """An application behind rules."""

    def __init__(self, app: App, rules: GateRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        crosses = origin.decode("latin-1") in self._rules.origins
        if crosses and scope["method"] == "OPTIONS":
            allowed = [(b"access-control-allow-methods", b"GET, POST")]
            allowed += [(b"access-control-allow-headers", ALLOWED), *_shared_with(origin)]
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body"})
            return
        try:
            self._rules.check(scope["path"], headers)
        except RequestError as problem:
            await _refuse(problem, scope["path"], send)
            return

        async def send_shared(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_shared_with(origin)]
            await send(message)

        await self._app(scope, receive, send_shared if crosses else send)


def _shared_with(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]


async def _refuse(problem: RequestError, path: str, send: Send) -> None:
    body = json.dumps(body_of(problem, path)).encode()
    length = (b"content-length", str(len(body)).encode())
    headers = [(b"content-type", b"application/json"), length]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
