"""Ollama's chat, generation and list of models."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.generation import FinishReason
from lbrx.serve import openai_api
from lbrx.serve.answer_reader import PartKind
from lbrx.serve.chat_request import ChatRequest, Said
from lbrx.serve.problems import RequestError, body_of, refuse
from lbrx.serve.service import Answers, Service

NAMES = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
SAME = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty"),
)


async def start(service: Service, body: Mapping[str, Any], *, chat: bool) -> Answers:
    """Check a request and let the model begin."""
    refuse(body, "images", "suffix", "context", "template")
    given = body.get("options") or {}
    if not isinstance(given, dict):
        raise RequestError(400, "options: give an object")
    names = {**{name: name for name in SAME}, **NAMES}
    wanted = {names[name]: value for name, value in given.items() if name in names}
    if wanted.get("max_tokens") in (-1, -2):  # as much as there is room for
        del wanted["max_tokens"]
    if not wanted.get("stop"):
        wanted.pop("stop", None)
    wanted.setdefault("temperature", 0.8)
    wanted.update(_format(body.get("format")))
    if chat:
        request = openai_api.chat_request({**body, "tool_choice": None})
        return await service.chat(replace(request, thinking=_thinking(body)), wanted)
    text = body.get("prompt")
    if not isinstance(text, str) or not text:
        raise RequestError(400, "prompt: give a text")
    if body.get("raw"):
        return await service.answers([text], wanted)
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    messages = [*system, {"role": "user", "content": text}]
    return await service.chat(ChatRequest(messages, thinking=_thinking(body)), wanted)


def _format(wanted: Any) -> dict[str, Any]:
    """The option for output that is JSON, of any kind or of a schema."""
    if wanted is None or wanted == "":
        return {}
    if wanted == "json":
        return {"schema": {"type": "object"}}
    if isinstance(wanted, dict):
        return {"schema": wanted}
    raise RequestError(400, f'format={wanted!r:.80}: give "json" or a JSON schema')


def _thinking(body: Mapping[str, Any]) -> bool | None:
    """Whether the model reasons first. Ollama's degrees of it are all yes."""
    wanted = body.get("think")
    return None if wanted is None else bool(wanted)


def part(service: Service, said: Said, *, chat: bool) -> dict[str, Any]:
    """A part of an answer, or the whole one."""
    thinking = {"thinking": said.reasoning} if said.reasoning else {}
    content: dict[str, Any] = {"response": said.text, **thinking}
    if chat:
        # A call that num_predict has cut has no arguments.
        calls = [
            {"function": {"name": call.name, "arguments": call.values}}
            for call in said.calls
            if call.values is not None
        ]
        message = {"role": "assistant", "content": said.text, **thinking}
        content = {"message": {**message, **({"tool_calls": calls} if calls else {})}}
    return {"model": service.name, "created_at": datetime.now(UTC).isoformat(), **content}


def end(answers: Answers, began: float) -> dict[str, Any]:
    """The fields of the last part."""
    (text,) = answers.texts
    return {
        "done": True,
        "done_reason": "length" if text.finish_reason is FinishReason.LENGTH else "stop",
        "total_duration": int((time.monotonic() - began) * 1e9),
        "prompt_eval_count": len(text.prompt),
        "eval_count": len(text.tokens),
    }


async def answer(service: Service, answers: Answers, *, chat: bool) -> dict[str, Any]:
    """The body of a complete answer."""
    began = time.monotonic()
    (said,) = await answers.said()
    return {**part(service, said, chat=chat), **end(answers, began)}


async def lines(service: Service, answers: Answers, *, chat: bool) -> AsyncIterator[str]:
    """An answer in lines of JSON."""
    began, last = time.monotonic(), Said()
    try:
        async for item in answers.parts():
            new = Said()
            for each in item[2] if item else ():
                (last if each.kind is PartKind.CALL else new).add(each)
            if new.text or new.reasoning:
                yield _line({**part(service, new, chat=chat), "done": False})
        if last.calls:
            yield _line({**part(service, last, chat=chat), "done": False})
    except LbrxError as problem:
        yield _line(body_of(problem, "/api/"))
        return
    yield _line({**part(service, Said(), chat=chat), **end(answers, began)})


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def tags(every: Iterable[Service]) -> dict[str, Any]:
    """The list of models."""
    return {"models": [_tag(service) for service in every]}


def _tag(service: Service) -> dict[str, Any]:
    config = service.model.config
    details = {"format": "lbrx", "family": config.model_type, "families": [config.model_type]}
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": datetime.fromtimestamp(service.created, UTC).isoformat(),
        "size": service.model.memory.weights,
        "digest": "",
        "details": details,
    }
