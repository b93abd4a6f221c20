"""Anthropic's messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.generation import FinishReason
from lbrx.serve.answer_reader import Part, PartKind
from lbrx.serve.chat_request import Call, ChatRequest, Said, list_of_objects, only_tool, tool_of
from lbrx.serve.openai_api import MOST_MESSAGES, event, format_of
from lbrx.serve.problems import RequestError, body_of, refuse
from lbrx.serve.service import Answers, Service

PATH = "/v1/messages"
REASONS = {FinishReason.LENGTH: "max_tokens", FinishReason.STOP: "stop_sequence"}


async def start(service: Service, body: Mapping[str, Any]) -> Answers:
    """Check a request and let the model begin."""
    refuse(body, "mcp_servers")
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
    return await service.chat(chat_request(body), wanted)


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """The conversation of a request, with its tools."""
    tools = [
        tool_of(each.get("name"), each.get("description"), each.get("input_schema"), None, "tools")
        for each in list_of_objects(body.get("tools"), "tools")
        if each.get("type", "custom") == "custom" or _unknown_tool(each)
    ]
    choice = body.get("tool_choice") or {"type": "auto"}
    required = False
    match choice:
        case {"type": "auto"}:
            pass
        case {"type": "none"}:
            tools = []
        case {"type": "any"}:
            required = True
        case {"type": "tool", "name": name}:
            tools, required = only_tool(tools, name, "tool_choice"), True
        case _:
            kinds = "an object of the type auto, any, tool or none"
            raise RequestError(400, f"tool_choice: give {kinds}", "tool_choice")
    if required and not tools:
        raise RequestError(400, "tool_choice: give tools, too", "tool_choice")
    given = list_of_objects(body.get("messages"), "messages", MOST_MESSAGES)
    if not given:
        raise RequestError(400, "messages: give a list of at least one message", "messages")
    system = body.get("system")
    messages = [{"role": "system", "content": system}] if system else []
    for each in given:
        messages += messages_of(each)
    thinking = body.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    parallel = not choice.get("disable_parallel_tool_use")
    return ChatRequest(
        messages, tools, required, parallel, None if kind is None else kind != "disabled"
    )


def _unknown_tool(tool: Mapping[str, Any]) -> bool:
    raise RequestError(400, f"tools: the type {tool['type']!r:.80} is not supported", "tools")


def messages_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message in OpenAI's form: results of tools become messages of their own, and earlier
    thoughts are left out."""
    content, role = given.get("content"), given.get("role")
    if isinstance(content, str) or role == "system":
        return [dict(given)]
    texts, calls, results = [], [], []
    for block in list_of_objects(content, "messages.content", MOST_MESSAGES):
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case {"type": "tool_use", "name": str(name), "input": dict(values)}:
                function = {"name": name, "arguments": values}
                calls.append({"id": str(block.get("id")), "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(call)}:
                said = _result_of(block.get("content"))
                results.append({"role": "tool", "tool_call_id": call, "content": said})
            case _:
                kinds = "text, thinking, tool_use or tool_result"
                raise RequestError(400, f"messages.content: give blocks of {kinds}", "messages")
    message: dict[str, Any] = {"role": role, "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return [*results, *([message] if texts or calls or not results else [])]


def _result_of(content: Any) -> str:
    """The text of a tool's result."""
    if content is None or isinstance(content, str):
        return content or ""
    blocks = list_of_objects(content, "messages.content", MOST_MESSAGES)
    if not all(isinstance(block.get("text"), str) for block in blocks):
        raise RequestError(400, "messages.content: results of tools are texts", "messages")
    return "".join(block["text"] for block in blocks)


def message(
    service: Service, answers: Answers, content: list[dict[str, Any]], calls: bool = False
) -> dict[str, Any]:
    """A message with what is known of its end."""
    (text,) = answers.texts
    reason = text.finish_reason
    ended = REASONS.get(reason, "tool_use" if calls else "end_turn") if reason else None
    return {
        "id": "msg_" + uuid.uuid4().hex,
        "type": "message",
        "role": "assistant",
        "model": service.name,
        "content": content,
        "stop_reason": ended,
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
    (said,) = await answers.said()
    content: list[dict[str, Any]] = []
    if said.reasoning:
        content.append({**BLOCKS[PartKind.REASONING], "thinking": said.reasoning})
    if said.text or not (said.reasoning or said.calls):
        content.append({"type": "text", "text": said.text})
    # A call that max_tokens has cut has no arguments.
    content += [
        {**_call_block(call), "input": call.values}
        for call in said.calls
        if call.values is not None
    ]
    return message(service, answers, content, bool(said.calls))


BLOCKS: dict[PartKind, dict[str, Any]] = {
    PartKind.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
    PartKind.TEXT: {"type": "text", "text": ""},
}
DELTAS = {
    PartKind.REASONING: ("thinking_delta", "thinking"),
    PartKind.TEXT: ("text_delta", "text"),
    PartKind.CALL: ("input_json_delta", "partial_json"),
}


def _call_block(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": {}}


def _named(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)


class _Blocks:
    """The blocks of a stream: each begins, has deltas and ends."""

    def __init__(self) -> None:
        self.said = Said()
        self.index = -1
        self._open: tuple[PartKind, int] | None = None

    def events(self, part: Part) -> list[str]:
        """What the next part adds."""
        self.said.add(part)
        made = []
        if self._open != (part.kind, part.call):
            is_call = part.kind is PartKind.CALL
            block = _call_block(self.said.calls[-1]) if is_call else BLOCKS[part.kind]
            made = [*self.end(), *self._begin(block)]
            self._open = part.kind, part.call
        kind, field = DELTAS[part.kind]
        if part.text:
            delta = {"type": kind, field: part.text}
            made.append(_named("content_block_delta", index=self.index, delta=delta))
        return made

    def _begin(self, block: dict[str, Any]) -> list[str]:
        self.index += 1
        return [_named("content_block_start", index=self.index, content_block=block)]

    def end(self) -> list[str]:
        """End the last block."""
        return [_named("content_block_stop", index=self.index)] if self._open else []


async def events(service: Service, answers: Answers) -> AsyncIterator[str]:
    """Server-sent events, each with its name."""
    blocks = _Blocks()
    try:
        yield _named("message_start", message=message(service, answers, []))
        async for item in answers.parts():
            for part in item[2] if item else ():
                for each in blocks.events(part):
                    yield each
            if item is None:
                yield _named("ping")
        if blocks.index < 0:  # an empty answer has a block, too
            for each in blocks.events(Part(PartKind.TEXT, "")):
                yield each
    except LbrxError as problem:
        yield event(body_of(problem, PATH), "error")
        return
    finally:
        answers.cancel()
    for each in blocks.end():
        yield each
    last = message(service, answers, [], bool(blocks.said.calls))
    delta = {name: last[name] for name in ("stop_reason", "stop_sequence")}
    yield _named("message_delta", delta=delta, usage=last["usage"])
    yield _named("message_stop")
