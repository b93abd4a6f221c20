"""Anthropic's messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.generation import FinishReason
from lbrx.serve.openai_api import event, format_of, messages_of
from lbrx.serve.problems import RequestError, body_of, refuse
from lbrx.serve.service import Answers, Service

PATH = "/v1/messages"
REASONS = {FinishReason.LENGTH: "max_tokens", FinishReason.STOP: "stop_sequence"}


async def start(service: Service, body: Mapping[str, Any]) -> Answers:
    """Check a request and let the model begin."""
    service.check_name(body.get("model"))
    refuse(body, "tools", "mcp_servers")
    if body.get("max_tokens") is None:
        raise RequestError(400, "max_tokens: Field required", "max_tokens")
    wanted = {
        name: body[name] for name in ("temperature", "top_p", "top_k", "max_tokens") if name in body
    }
    wanted.setdefault("temperature", 1.0)
    if body.get("stop_sequences"):
        wanted["stop"] = body["stop_sequences"]
    output = body.get("output_config") or {}
    if not isinstance(output, dict):
        raise RequestError(400, "output_config: give an object", "output_config")
    wanted.update(format_of(output.get("format"), "output_config.format"))
    messages = messages_of(body)
    if body.get("system"):
        messages = [{"role": "system", "content": body["system"]}, *messages]
    return await service.answers([messages], wanted)


def message(service: Service, answers: Answers, content: list[dict[str, Any]]) -> dict[str, Any]:
    """A message with what is known of its end."""
    (text,) = answers.texts
    reason = text.finish_reason
    return {
        "id": "msg_" + uuid.uuid4().hex,
        "type": "message",
        "role": "assistant",
        "model": service.name,
        "content": content,
        "stop_reason": None if reason is None else REASONS.get(reason, "end_turn"),
        "stop_sequence": text.stopped_by,
        "usage": usage(answers),
    }


def usage(answers: Answers) -> dict[str, int]:
    """The numbers of tokens. Those of the prompt that were not computed again are counted apart."""
    (text,), cached = answers.texts, answers.cached
    return {
        "input_tokens": len(text.prompt) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(text.tokens),
    }


async def answer(service: Service, answers: Answers) -> dict[str, Any]:
    """The body of a complete answer."""
    (shown,) = await answers.whole()
    return message(service, answers, [{"type": "text", "text": shown}])


async def events(service: Service, answers: Answers) -> AsyncIterator[str]:
    """Server-sent events, each with its name."""

    def named(kind: str, **fields: Any) -> str:
        return event({"type": kind, **fields}, kind)

    block = {"type": "text", "text": ""}
    try:
        yield named("message_start", message=message(service, answers, []))
        yield named("content_block_start", index=0, content_block=block)
        async for item in answers.pieces():
            if item is None:
                yield named("ping")
            elif item[1].shown:
                delta = {"type": "text_delta", "text": item[1].shown}
                yield named("content_block_delta", index=0, delta=delta)
    except LbrxError as problem:
        yield event(body_of(problem, PATH), "error")
        return
    finally:
        answers.cancel()
    yield named("content_block_stop", index=0)
    last = message(service, answers, [])
    delta = {name: last[name] for name in ("stop_reason", "stop_sequence")}
    yield named("message_delta", delta=delta, usage=last["usage"])
    yield named("message_stop")
