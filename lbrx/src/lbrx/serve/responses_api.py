"""OpenAI's responses, without what a server would have to remember between requests."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.generation import FinishReason
from lbrx.serve.answer_reader import Part, PartKind
from lbrx.serve.chat_request import Call, ChatRequest, Said, list_of_objects
from lbrx.serve.openai_api import MOST_MESSAGES, chat_request, event, format_of
from lbrx.serve.problems import RequestError, message_of, refuse
from lbrx.serve.service import Answers, Service

Body = Mapping[str, Any]
STATEFUL = ("previous_response_id", "conversation", "background", "prompt", "store")
ROLES = ("user", "assistant", "system", "developer")


async def start(service: Service, body: Body) -> Answers:
    """Check a request and let the model begin."""
    refuse(body, *STATEFUL)
    wanted = {name: body[name] for name in ("temperature", "top_p") if body.get(name) is not None}
    wanted.setdefault("temperature", 1.0)
    if body.get("max_output_tokens") is not None:
        wanted["max_tokens"] = body["max_output_tokens"]
    text = body.get("text") or {}
    if not isinstance(text, dict):
        raise RequestError(400, "text: give an object", "text")
    wanted.update(format_of(text.get("format"), "text.format"))
    return await service.chat(_chat_request(body), wanted)


def _chat_request(body: Body) -> ChatRequest:
    messages = _messages_of(body.get("input"))
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    request = chat_request({**body, "messages": messages})
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return (
        request if effort is None else replace(request, thinking=effort not in ("none", "minimal"))
    )


def _messages_of(given: Any) -> list[dict[str, Any]]:
    """The messages of an input: a text or items. Calls join the message before them."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in list_of_objects(given, "input", MOST_MESSAGES):
        match item:
            case {"type": "function_call", "name": str(name)}:
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                function = {"name": name, "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            case {"type": "function_call_output", "call_id": call_id}:
                said = _text_of(item.get("output"))
                messages.append({"role": "tool", "tool_call_id": call_id, "content": said})
            case {"type": "reasoning"}:
                pass
            case {"role": role} if role in ROLES and item.get("type", "message") == "message":
                messages.append({"role": role, "content": _text_of(item.get("content"))})
            case _:
                kinds = "message, function_call, function_call_output or reasoning"
                raise RequestError(400, f"input: give a text or items of the type {kinds}", "input")
    if not messages:
        raise RequestError(400, "input: give a text or at least one message", "input")
    return messages


def _text_of(content: Any) -> str:
    """The text of a content, which is a text or parts."""
    if isinstance(content, str):
        return content
    parts = list_of_objects(content, "input.content", MOST_MESSAGES)
    if not all(isinstance(part.get("text"), str) for part in parts):
        raise RequestError(400, "input.content: give texts", "input")
    return "".join(part["text"] for part in parts)


@dataclass
class _Item:
    """An item of the output while it is written."""

    kind: PartKind
    index: int
    call: Call | None = None
    text: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def shown(self, status: str) -> dict[str, Any]:
        """As the API has it."""
        if self.kind is PartKind.CALL:
            assert self.call is not None
            named = {"call_id": self.call.id, "name": self.call.name, "arguments": self.text}
            return {"type": "function_call", "id": f"fc_{self.id}", "status": status, **named}
        if self.kind is PartKind.REASONING:
            content = [{"type": "reasoning_text", "text": self.text}] if self.text else []
            rest = {"summary": [], "content": content, "status": status}
            return {"type": "reasoning", "id": f"rs_{self.id}", **rest}
        content = [self.content] if self.text or status != "in_progress" else []
        rest = {"role": "assistant", "status": status, "content": content}
        return {"type": "message", "id": f"msg_{self.id}", **rest}

    @property
    def content(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


class _Writer:
    """Writes the items of an output, and the events that tell of them."""

    def __init__(self, frame: dict[str, Any]) -> None:
        self.frame = frame
        self.items: list[_Item] = []
        self.said = Said()
        self._number = -1
        self._open: tuple[PartKind, int] | None = None

    def event(self, kind: str, **fields: Any) -> str:
        """An event with its number."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def response(self, status: str, **fields: Any) -> dict[str, Any]:
        """The response with its items."""
        done = "completed" if status == "completed" else "incomplete"
        output = [item.shown(done) for item in self.items]
        return {**self.frame, "status": status, "output": output, **fields}

    def add(self, part: Part) -> list[str]:
        """The events of the next part."""
        self.said.add(part)
        made = []
        if self._open != (part.kind, part.call):
            made = self.end() + self._begin(part)
        item = self.items[-1]
        item.text += part.text
        if part.text:
            kind, fields = self._delta(item)
            made.append(self.event(f"response.{kind}.delta", delta=part.text, **fields))
        return made

    def _begin(self, part: Part) -> list[str]:
        call = self.said.calls[-1] if part.kind is PartKind.CALL else None
        item = _Item(part.kind, len(self.items), call)
        self.items.append(item)
        self._open = part.kind, part.call
        shown = item.shown("in_progress")
        made = [self.event("response.output_item.added", output_index=item.index, item=shown)]
        if part.kind is PartKind.TEXT:
            made.append(self._content(item, "added"))
        return made

    def _content(self, item: _Item, what: str) -> str:
        place = {"output_index": item.index, "content_index": 0, "item_id": f"msg_{item.id}"}
        return self.event(f"response.content_part.{what}", part=item.content, **place)

    def _delta(self, item: _Item) -> tuple[str, dict[str, Any]]:
        place = {"output_index": item.index, "item_id": item.shown("")["id"]}
        if item.kind is PartKind.CALL:
            return "function_call_arguments", place
        place["content_index"] = 0
        if item.kind is PartKind.TEXT:
            return "output_text", {**place, "logprobs": []}
        return "reasoning_text", place

    def end(self) -> list[str]:
        """The events at the end of an item."""
        if self._open is None:
            return []
        self._open, item = None, self.items[-1]
        kind, fields = self._delta(item)
        said = {"arguments" if item.kind is PartKind.CALL else "text": item.text}
        if item.call is not None:
            said["name"] = item.call.name
        made = [self.event(f"response.{kind}.done", **said, **fields)]
        if item.kind is PartKind.TEXT:
            made.append(self._content(item, "done"))
        shown = item.shown("completed")
        return [
            *made,
            self.event("response.output_item.done", output_index=item.index, item=shown),
        ]


def _writer(service: Service, body: Body) -> _Writer:
    echoed = {
        name: body.get(name)
        for name in (
            "instructions",
            "max_output_tokens",
            "metadata",
            "temperature",
            "top_p",
            "user",
        )
    }
    return _Writer(
        {
            "id": "resp_" + uuid.uuid4().hex,
            "object": "response",
            "created_at": int(time.time()),
            "model": service.name,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **echoed,
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": body.get("reasoning"),
            "store": False,
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "truncation": "disabled",
        }
    )


def _ended(writer: _Writer, answers: Answers) -> dict[str, Any]:
    """The response at its end."""
    (text,) = answers.texts
    read, made = len(text.prompt), len(text.tokens)
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": answers.cached, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + made,
    }
    if text.finish_reason is FinishReason.LENGTH:
        reason = {"reason": "max_output_tokens"}
        return writer.response("incomplete", usage=usage, incomplete_details=reason)
    return writer.response("completed", usage=usage)


async def answer(service: Service, answers: Answers, body: Body) -> dict[str, Any]:
    """The body of a complete answer."""
    writer = _writer(service, body)
    async for item in answers.parts():
        for part in item[2] if item else ():
            writer.add(part)
    return _ended(writer, answers)


async def events(service: Service, answers: Answers, body: Body) -> AsyncIterator[str]:
    """Server-sent events, each with its name. An error after the first one is an event, too."""
    writer = _writer(service, body)
    try:
        for kind in ("created", "in_progress"):
            yield writer.event(f"response.{kind}", response=writer.response("in_progress"))
        async for item in answers.parts():
            if item is None:
                yield ": waiting\n\n"
            for part in item[2] if item else ():
                for each in writer.add(part):
                    yield each
    except LbrxError as problem:
        error = {"code": "server_error", "message": message_of(problem)}
        yield writer.event("response.failed", response=writer.response("failed", error=error))
        return
    for each in writer.end():
        yield each
    last = _ended(writer, answers)
    yield writer.event(f"response.{last['status']}", response=last)
