"""OpenAI's chat completions, completions and models."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.batch_engine import Piece
from lbrx.models.generation import FinishReason, TextState
from lbrx.models.sampling import check_number
from lbrx.models.tokenizer import Tokenizer
from lbrx.serve.answer_reader import Part, PartKind
from lbrx.serve.chat_request import (
    Call,
    ChatRequest,
    Said,
    list_of_objects,
    only_tool,
    tool_of,
)
from lbrx.serve.problems import RequestError, body_of, refuse
from lbrx.serve.service import Answers, Service

Body = Mapping[str, Any]
MOST_MESSAGES = 4096
MOST_PROMPTS = 64
MOST_ANSWERS = 16
REASONS = {FinishReason.LENGTH: "length"}
SAMPLING = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
TOOL_FIELDS = ("name", "description", "parameters", "strict")
BEYOND = ("top_k", "min_p", "repetition_penalty")  # which other servers take, too


def options_of(body: Body) -> dict[str, Any]:
    """The options of `read_options` that chat and other completions have in common."""
    wanted = {name: body[name] for name in (*SAMPLING, *BEYOND) if body.get(name) is not None}
    wanted.setdefault("temperature", 1.0)
    bias = wanted.get("logit_bias", {})
    if not isinstance(bias, dict) or not all(key.isdecimal() for key in bias):
        raise RequestError(400, "logit_bias: give an object of token ids", "logit_bias")
    wanted["logit_bias"] = {int(token): value for token, value in bias.items()}
    if body.get("stop"):
        wanted["stop"] = body["stop"]
    limit = body.get("max_completion_tokens")
    if limit is None:
        limit = body.get("max_tokens")
    if limit is not None:
        wanted["max_tokens"] = limit
    return wanted


def messages_of(body: Body) -> list[dict[str, Any]]:
    """The messages of a chat: those of developers are system messages, and arguments objects."""
    given = list_of_objects(body.get("messages"), "messages", MOST_MESSAGES)
    if not given:
        raise RequestError(400, "messages: give a list of at least one message", "messages")
    return [_message(each) for each in given]


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    message = dict(given)
    if message.get("role") == "developer":
        message["role"] = "system"
    calls = list_of_objects(message.pop("tool_calls", None), "messages.tool_calls")
    if calls:
        message["content"] = message.get("content") or ""
        message["tool_calls"] = [_past_call(call) for call in calls]
    return message


def _past_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call that an earlier answer had, with its arguments as an object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        where = "messages.tool_calls"
        raise RequestError(400, f"{where}: give objects with a function that has a name", where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    named = {"name": function["name"], "arguments": arguments}
    return {"id": str(call.get("id") or ""), "type": "function", "function": named}


def chat_request(body: Body) -> ChatRequest:
    """The conversation of a request, with its tools."""
    tools = []
    for each in list_of_objects(body.get("tools"), "tools"):
        # Responses have a function's fields in the tool itself.
        function = each.get("function", each)
        if each.get("type") != "function" or not isinstance(function, dict):
            raise RequestError(400, "tools: give tools of the type function", "tools")
        name, about, parameters, strict = map(function.get, TOOL_FIELDS)
        tools.append(tool_of(name, about, parameters, strict, "tools"))
    required = False
    match body.get("tool_choice"):
        case None | "auto":
            pass
        case "none":
            tools = []
        case "required":
            required = True
        case {"type": "function", "function": {"name": name}} | {"type": "function", "name": name}:
            tools, required = only_tool(tools, name, "tool_choice"), True
        case other:
            kinds = "none, auto, required or a function"
            raise RequestError(400, f"tool_choice={other!r:.80}: give {kinds}", "tool_choice")
    if required and not tools:
        raise RequestError(400, "tool_choice: give tools, too", "tool_choice")
    effort = body.get("reasoning_effort")
    thinking = None if effort is None else effort not in ("none", "minimal")
    parallel = body.get("parallel_tool_calls") is not False
    return ChatRequest(messages_of(body), tools, required, parallel, thinking)


def count_of(body: Body) -> int:
    """How many answers are wanted."""
    count = 1 if body.get("n") is None else body["n"]
    check_number("n", count, 1, MOST_ANSWERS, integer=True)
    return int(count)


def prompts_of(body: Body) -> list[Any]:
    """The prompts of a completion: texts or lists of token ids."""
    given = body.get("prompt")
    if isinstance(given, str) or (
        isinstance(given, list) and given and all(isinstance(each, int) for each in given)
    ):
        return [given]
    kinds = (str, list)
    if not isinstance(given, list) or not given or not all(isinstance(p, kinds) for p in given):
        raise RequestError(400, "prompt: give a text, token ids, or a list of these", "prompt")
    if len(given) > MOST_PROMPTS:
        raise RequestError(400, f"prompt: give at most {MOST_PROMPTS}", "prompt")
    return given


@dataclass(frozen=True)
class Format:
    """How a request wants its answers: the parts in which the two endpoints differ."""

    chat: bool
    logprobs: bool
    include_usage: bool
    name: str
    tokenizer: Tokenizer

    def frame(self, streamed: bool) -> dict[str, Any]:
        """The fields around choices, the same in all parts of an answer."""
        kind = "chat.completion" if self.chat else "text_completion"
        prefix = "chatcmpl-" if self.chat else "cmpl-"
        return {
            "id": prefix + uuid.uuid4().hex,
            "object": kind + ".chunk" if self.chat and streamed else kind,
            "created": int(time.time()),
            "model": self.name,
            "system_fingerprint": None,
        }

    def choice(self, index: int, said: Said, text: TextState) -> dict[str, Any]:
        """A complete answer."""
        return {
            "index": index,
            **({"message": message_of(said)} if self.chat else {"text": said.text}),
            "logprobs": self.scores(text, 0, len(text.tokens)),
            "finish_reason": reason_of(text.finish_reason, bool(said.calls)),
        }

    def part(
        self, index: int, piece: Piece, parts: Sequence[Part], text: TextState, told: Told
    ) -> dict[str, Any]:
        """The next parts of an answer, after those that were `told`."""
        shown = {"delta": told.delta(parts)} if self.chat else {"text": piece.shown}
        return {
            "index": index,
            **shown,
            "logprobs": self.scores(text, told.tokens, piece.tokens),
            "finish_reason": reason_of(piece.finish_reason, bool(told.said.calls)),
        }

    def scores(self, text: TextState, first: int, end: int) -> dict[str, Any] | None:
        """The log-probabilities of some tokens of a text."""
        if not self.logprobs:
            return None
        tokens = [self._token(token) for token in text.tokens[first:end]]
        likely = [
            [(self._token(token), score) for token, score in each]
            for each in text.top_logprobs[first:end]
        ] or [[] for _ in tokens]
        each_score = text.logprobs[first:end]
        if not self.chat:
            before = sum(len(self._token(token)) for token in text.tokens[:first])
            ends = accumulate(map(len, tokens), initial=before)
            return {
                "tokens": tokens,
                "token_logprobs": each_score,
                "top_logprobs": [dict(each) for each in likely],
                "text_offset": list(ends)[:-1],
            }
        content = [
            {**_entry(token, score), "top_logprobs": [_entry(*one) for one in others]}
            for token, score, others in zip(tokens, each_score, likely, strict=True)
        ]
        return {"content": content}

    def _token(self, token: int) -> str:
        return self.tokenizer.decode([token], special=True)


def _entry(token: str, score: float) -> dict[str, Any]:
    return {"token": token, "logprob": score, "bytes": list(token.encode())}


@dataclass
class Told:
    """What a stream has told of one answer."""

    tokens: int = 0
    said: Said = field(default_factory=Said)

    def delta(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The next parts of a conversation's answer."""
        changed: dict[str, Any] = {}
        if self.tokens == 0:
            changed = {"role": "assistant", "content": ""}
        for part in parts:
            self.said.add(part)
            if part.kind is PartKind.CALL:
                changed.setdefault("tool_calls", []).append(self._call(part))
            else:
                key = "content" if part.kind is PartKind.TEXT else "reasoning_content"
                changed[key] = changed.get(key, "") + part.text
        return changed

    def _call(self, part: Part) -> dict[str, Any]:
        if part.name is None:
            return {"index": part.call, "function": {"arguments": part.text}}
        return {"index": part.call, **call_of(self.said.calls[part.call], part.text)}


def call_of(call: Call, arguments: str) -> dict[str, Any]:
    """A call of a tool."""
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def message_of(said: Said) -> dict[str, Any]:
    """A complete answer of a conversation."""
    text = said.text or ("" if not said.calls else None)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [call_of(call, call.arguments) for call in said.calls]
    return message


def reason_of(reason: FinishReason | None, calls: bool = False) -> str | None:
    return None if reason is None else REASONS.get(reason, "tool_calls" if calls else "stop")


def usage(answers: Answers, prompts: int) -> dict[str, Any]:
    """The numbers of tokens; those of a prompt count once for all its answers."""
    each = len(answers.texts) // prompts
    read = sum(len(text.prompt) for text in answers.texts[::each])
    return {
        "prompt_tokens": read,
        "completion_tokens": answers.generated,
        "total_tokens": read + answers.generated,
        "prompt_tokens_details": {"cached_tokens": answers.cached},
    }


async def start(service: Service, body: Body, *, chat: bool) -> tuple[Answers, Format, int]:
    """Check a request and let the model begin: the answers, their format, the prompts' number."""
    wanted = options_of(body)
    wanted.update(format_of(body.get("response_format"), "response_format"))
    prompts: Sequence[Any] = ()
    if chat:
        refuse(body, "functions", "audio")
        logprobs, top = bool(body.get("logprobs")), body.get("top_logprobs") or 0
    else:
        refuse(body, "suffix", "echo")
        prompts = prompts_of(body)
        logprobs, top = body.get("logprobs") is not None, body.get("logprobs") or 0
    if logprobs:
        check_number("top_logprobs" if chat else "logprobs", top, 0, 20, integer=True)
        wanted.update(logprobs=True, top_logprobs=int(top))
    stream_options = body.get("stream_options")
    include = isinstance(stream_options, dict) and bool(stream_options.get("include_usage"))
    style = Format(chat, logprobs, include, service.name, service.model.tokenizer)
    if chat:
        return await service.chat(chat_request(body), wanted, count_of(body)), style, 1
    return await service.answers(prompts, wanted, count_of(body)), style, len(prompts)


def format_of(wanted: Any, param: str) -> dict[str, Any]:
    """The option for output that obeys rules; nothing for text. Whether `strict` or not, an answer
    obeys its schema. `regex` and `grammar` are kinds that only this server has."""
    match wanted:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"schema": schema}
        case {"type": "json_schema", "schema": dict(schema)}:  # as responses and messages have it
            return {"schema": schema}
        case {"type": "regex" | "grammar" as kind} if isinstance(wanted.get(kind), str):
            return {kind: wanted[kind]}
    kinds = "text, json_object, json_schema with a schema, regex or grammar"
    raise RequestError(400, f"{param}: give an object whose type is {kinds}", param)


async def answer(answers: Answers, style: Format, prompts: int) -> dict[str, Any]:
    """The body of a complete answer."""
    every = await answers.said()
    choices = [
        style.choice(index, said, text)
        for index, (said, text) in enumerate(zip(every, answers.texts, strict=True))
    ]
    return {**style.frame(False), "choices": choices, "usage": usage(answers, prompts)}


async def events(answers: Answers, style: Format, prompts: int) -> AsyncIterator[str]:
    """Server-sent events. An error after the first one is an event, too."""
    frame, told = style.frame(True), [Told() for _ in answers.texts]
    rest = {"usage": None} if style.include_usage else {}
    try:
        async for item in answers.parts():
            if item is None:
                yield ": waiting\n\n"
                continue
            index, piece, parts = item
            known = told[index]
            if parts or piece.finish_reason or style.logprobs or known.tokens == 0:
                choice = style.part(index, piece, parts, answers.texts[index], known)
                known.tokens = piece.tokens
                yield event({**frame, "choices": [choice], **rest})
    except LbrxError as problem:
        yield event(body_of(problem, "/v1"))
        return
    if style.include_usage:
        yield event({**frame, "choices": [], "usage": usage(answers, prompts)})
    yield "data: [DONE]\n\n"


def event(data: Mapping[str, Any], name: str | None = None) -> str:
    """A server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def models(every: Iterable[Service]) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(service) for service in every]}


def model(service: Service) -> dict[str, Any]:
    """What is said of a model."""
    kind = {"object": "model", "owned_by": "lbrx"}
    return {"id": service.name, "created": service.created, **kind}
