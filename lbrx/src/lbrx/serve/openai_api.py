"""OpenAI's chat completions, completions and models."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.batch_engine import Piece
from lbrx.models.generation import FinishReason, TextState
from lbrx.models.sampling import check_number
from lbrx.models.tokenizer import Tokenizer
from lbrx.serve.problems import RequestError, body_of, refuse
from lbrx.serve.service import Answers, Service

Body = Mapping[str, Any]
MOST_MESSAGES = 4096
MOST_PROMPTS = 64
MOST_ANSWERS = 16
REASONS = {FinishReason.LENGTH: "length"}
SAMPLING = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
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
    """The messages of a chat, those of developers as system messages."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestError(400, "messages: give a list of at least one message", "messages")
    if len(given) > MOST_MESSAGES:
        raise RequestError(400, f"messages: give at most {MOST_MESSAGES:,}", "messages")
    return [
        {**each, "role": "system"}
        if isinstance(each, dict) and each.get("role") == "developer"
        else each
        for each in given
    ]


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

    def choice(self, index: int, shown: str, text: TextState, ended: bool) -> dict[str, Any]:
        """A complete answer."""
        said = {"message": {"role": "assistant", "content": shown, "refusal": None}}
        return {
            "index": index,
            **(said if self.chat else {"text": shown}),
            "logprobs": self.scores(text, 0, len(text.tokens)),
            "finish_reason": reason_of(text.finish_reason) if ended else None,
        }

    def delta(self, index: int, piece: Piece, text: TextState, told: int) -> dict[str, Any]:
        """A part of an answer, of whose tokens `told` were in parts before."""
        changed: dict[str, Any] = {"content": piece.shown} if piece.shown else {}
        if told == 0 and self.chat:
            changed = {"role": "assistant", "content": piece.shown}
        return {
            "index": index,
            **({"delta": changed} if self.chat else {"text": piece.shown}),
            "logprobs": self.scores(text, told, piece.tokens),
            "finish_reason": reason_of(piece.finish_reason),
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


def reason_of(reason: FinishReason | None) -> str | None:
    return None if reason is None else REASONS.get(reason, "stop")


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
    service.check_name(body.get("model"))
    wanted = options_of(body)
    if chat:
        refuse(body, "tools", "functions", "audio")
        wanted.update(format_of(body.get("response_format"), "response_format"))
        prompts: Sequence[Any] = [messages_of(body)]
        logprobs, top = bool(body.get("logprobs")), body.get("top_logprobs") or 0
    else:
        refuse(body, "suffix", "echo")
        wanted.update(format_of(body.get("response_format"), "response_format"))
        prompts = prompts_of(body)
        logprobs, top = body.get("logprobs") is not None, body.get("logprobs") or 0
    if logprobs:
        check_number("top_logprobs" if chat else "logprobs", top, 0, 20, integer=True)
        wanted.update(logprobs=True, top_logprobs=int(top))
    stream_options = body.get("stream_options")
    include = isinstance(stream_options, dict) and bool(stream_options.get("include_usage"))
    style = Format(chat, logprobs, include, service.name, service.model.tokenizer)
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
    shown = await answers.whole()
    both = zip(shown, answers.texts, strict=True)
    choices = [style.choice(i, said, text, True) for i, (said, text) in enumerate(both)]
    return {**style.frame(False), "choices": choices, "usage": usage(answers, prompts)}


async def events(answers: Answers, style: Format, prompts: int) -> AsyncIterator[str]:
    """Server-sent events. An error after the first one is an event, too."""
    frame, told = style.frame(True), [0] * len(answers.texts)
    rest = {"usage": None} if style.include_usage else {}
    try:
        async for item in answers.pieces():
            if item is None:
                yield ": waiting\n\n"
                continue
            index, piece = item
            news = piece.shown or piece.finish_reason or style.logprobs or told[index] == 0
            if news:
                delta = style.delta(index, piece, answers.texts[index], told[index])
                told[index] = piece.tokens
                yield event({**frame, "choices": [delta], **rest})
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


def models(service: Service) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(service)]}


def model(service: Service) -> dict[str, Any]:
    """The one model."""
    kind = {"object": "model", "owned_by": "lbrx"}
    return {"id": service.name, "created": service.created, **kind}
