"""The server's paths."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lbrx.errors import LbrxError
from lbrx.serve import (
    anthropic_api,
    chat_page,
    embeddings_api,
    metrics,
    ollama_api,
    openai_api,
    responses_api,
)
from lbrx.serve.models import Models
from lbrx.serve.problems import TOO_LARGE, RequestError, body_of, status_of
from lbrx.serve.service import Answers

log = logging.getLogger("lbrx")
T = TypeVar("T")
MOST_BYTES = 16 << 20  # of a request's body
BODY_SECONDS = 30.0  # for a body to arrive
GONE = 499  # for the log alone: the client does not read it
Handler = Callable[[Request], Awaitable[Response]]


def make_app(every: Models) -> Starlette:
    """The application."""

    async def chat(request: Request) -> Response:
        return await _openai(every, request, chat=True)

    async def completions(request: Request) -> Response:
        return await _openai(every, request, chat=False)

    async def messages(request: Request) -> Response:
        body = await read_json(request)
        service = every.named(body.get("model"))
        answers = await anthropic_api.start(service, body)
        if body.get("stream"):
            return _events(answers, anthropic_api.events(service, answers))
        return await _whole(request, answers, anthropic_api.answer(service, answers))

    async def ollama_chat(request: Request) -> Response:
        return await _ollama(every, request, chat=True)

    async def ollama_generate(request: Request) -> Response:
        return await _ollama(every, request, chat=False)

    async def tags(request: Request) -> Response:
        return JSONResponse(ollama_api.tags(every))

    async def responses(request: Request) -> Response:
        body = await read_json(request)
        service = every.named(body.get("model"))
        answers = await responses_api.start(service, body)
        if body.get("stream"):
            return _events(answers, responses_api.events(service, answers, body))
        return await _whole(request, answers, responses_api.answer(service, answers, body))

    async def embeddings(request: Request) -> Response:
        body = await read_json(request)
        service = every.named(body.get("model"))
        return JSONResponse(await embeddings_api.openai_answer(service, body))

    async def ollama_embed(request: Request) -> Response:
        body = await read_json(request)
        service = every.named(body.get("model"))
        return JSONResponse(await embeddings_api.ollama_answer(service, body))

    async def models(request: Request) -> Response:
        return JSONResponse(openai_api.models(every))

    async def model(request: Request) -> Response:
        service = every.named(request.path_params["name"])
        return JSONResponse(openai_api.model(service))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def numbers(request: Request) -> Response:
        return PlainTextResponse(metrics.text(every), media_type="text/plain; version=0.0.4")

    routes = [
        *chat_page.ROUTES,
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/api/chat", ollama_chat, methods=["POST"]),
        Route("/api/generate", ollama_generate, methods=["POST"]),
        Route("/api/embed", ollama_embed, methods=["POST"]),
        Route("/api/tags", tags),
        Route("/health", health),
        Route("/metrics", numbers),
    ]
    handlers: Mapping[Any, Any] = {
        LbrxError: _told,
        HTTPException: _http_problem,
        ClientDisconnect: _gone,
        Exception: _told,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def _openai(every: Models, request: Request, *, chat: bool) -> Response:
    body = await read_json(request)
    service = every.named(body.get("model"))
    answers, style, prompts = await openai_api.start(service, body, chat=chat)
    if body.get("stream"):
        return _events(answers, openai_api.events(answers, style, prompts))
    return await _whole(request, answers, openai_api.answer(answers, style, prompts))


async def _ollama(every: Models, request: Request, *, chat: bool) -> Response:
    body = await read_json(request)
    service = every.named(body.get("model"))
    answers = await ollama_api.start(service, body, chat=chat)
    if body.get("stream", True):
        lines = ollama_api.lines(service, answers, chat=chat)
        return _stream(answers, lines, "application/x-ndjson")
    return await _whole(request, answers, ollama_api.answer(service, answers, chat=chat))


async def read_json(request: Request) -> dict[str, Any]:
    """The body of a request, an object of JSON. Raises RequestError for anything else."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise RequestError(TOO_LARGE, f"the body is longer than {MOST_BYTES:,} bytes")
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive in {BODY_SECONDS:g} seconds") from None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RequestError(400, "the body is not an object of JSON")
    return value


def _events(answers: Answers, parts: AsyncIterator[str]) -> Response:
    return _stream(answers, parts, "text/event-stream")


def _stream(answers: Answers, parts: AsyncIterator[str], media: str) -> Response:
    """A response that ends its texts however it ends itself, also before its first part."""

    async def until_the_end() -> AsyncIterator[str]:
        try:
            async for part in parts:
                yield part
        finally:
            answers.cancel()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(until_the_end(), media_type=media, headers=headers)


async def _whole(request: Request, answers: Answers, body: Awaitable[dict[str, Any]]) -> Response:
    """A complete answer, unless the client goes away first."""
    answering = asyncio.ensure_future(body)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return JSONResponse(answering.result())
    finally:
        answers.cancel()
        for task in (answering, leaving):
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _told(request: Request, problem: Exception) -> Response:
    status = status_of(problem)
    if status == 500:
        log.error("a request failed", exc_info=problem)
    return _problem(request, problem, status)


async def _http_problem(request: Request, problem: HTTPException) -> Response:
    known = RequestError(problem.status_code, f"{request.url.path}: {problem.detail}")
    return _problem(request, known, problem.status_code)


async def _gone(request: Request, problem: Exception) -> Response:
    return Response(status_code=GONE)


def _problem(request: Request, problem: Exception, status: int) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else {}
    # An error of the program comes again: the clients of OpenAI repeat requests unless told so.
    if status == 500:
        headers["x-should-retry"] = "false"
    return JSONResponse(body_of(problem, request.url.path), status, headers)
