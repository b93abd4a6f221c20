"""What is wrong with a request, in the words of each API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.batch_engine import QueueFullError

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
TOO_LARGE, OVERLOADED, TIMED_OUT = 413, 503, 504


class RequestError(LbrxError):
    """A request that is answered with an HTTP status and a message."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def status_of(problem: Exception) -> int:
    """The HTTP status of an error. Clients repeat requests whose status is 500 or more."""
    if isinstance(problem, RequestError):
        return problem.status
    if isinstance(problem, QueueFullError):
        return OVERLOADED
    return 400 if isinstance(problem, LbrxError) else 500


def message_of(problem: Exception) -> str:
    """The text of an error; those of the program itself are not shown to clients."""
    return str(problem) if isinstance(problem, LbrxError) else "internal error: see the log"


def body_of(problem: Exception, path: str) -> dict[str, Any]:
    """The body of an error in the API that a path belongs to."""
    status, message = status_of(problem), message_of(problem)
    usual = "invalid_request_error" if status < 500 else "server_error"
    if path.startswith("/api/"):
        return {"error": message}
    if path.startswith("/v1/messages"):
        kinds = {**KINDS, TOO_LARGE: "request_too_large", OVERLOADED: "overloaded_error"}
        kind = kinds.get(status, usual if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    param = getattr(problem, "param", None)
    code = "model_not_found" if status == 404 and param == "model" else None
    kind = KINDS.get(status, usual) if status != 404 else usual
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(body: Mapping[str, Any], *names: str) -> None:
    """Raise RequestError if a request asks for what the server does not do."""
    for name in names:
        if body.get(name):
            raise RequestError(400, f"{name} is not supported: leave it out", name)
