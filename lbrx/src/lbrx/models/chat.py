"""Turns the messages of a conversation into text, with the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError, LbrxError
from lbrx.models.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""{"role": "system", "user" or "assistant", "content": a text or a list of parts}, where a part is
{"type": "text", "text": a text}."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    answer: bool = True,
    tools: Sequence[Any] | None = None,
    thinking: bool | None = None,
) -> str:
    """The text of a conversation, up to where the model's answer begins, or with answer=False the
    messages alone. `tools` are those that the template shows to the model; `thinking` says whether
    the model reasons before its answer, where the template can tell it.

    Raises LbrxError for bad messages, and FormatError if the template is missing or fails.
    """
    check(messages)
    from lbrx.models import template_process

    variables = {
        "messages": [_with_text(message) for message in messages],
        "add_generation_prompt": answer,
        **({} if tools is None else {"tools": tools}),
        **({} if thinking is None else {"enable_thinking": thinking}),
        **{key: tokenizer.special_token(key) for key in _SPECIAL},
    }
    template = template_of(tokenizer, "tool_use" if tools else "default")
    return template_process.render(template, variables)


def check(messages: Sequence[Message]) -> None:
    """Raise LbrxError for anything but a list of messages with a role and a content."""
    if not isinstance(messages, list | tuple) or not messages:
        raise LbrxError(f"{messages!r:.80} is not a conversation: give a list of messages")
    for message in messages:
        if not _is_message(message):
            raise LbrxError(
                f"{message!r:.80} is not a message: give {{'role': 'user', 'content': 'text'}}"
            )


def _is_message(message: object) -> bool:
    """Whether it has a role and a content: a text, a list of texts, or none beside tool calls."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(_is_part(part) for part in content)
    return isinstance(content, str) or (content is None and "tool_calls" in message)


def _is_part(part: object) -> bool:
    """Whether it is a part of a content: models read text alone."""
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )


def _with_text(message: Message) -> Message:
    """The message with its parts joined: few templates take a list as the content."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "".join(part["text"] for part in content)}


def has_template(tokenizer: Tokenizer) -> bool:
    """Whether the model has a chat template."""
    return bool(tokenizer.settings.get("chat_template"))


def template_of(tokenizer: Tokenizer, name: str = "default") -> str:
    """The model's chat template, that of this name if it has several and one is so called. Raises
    FormatError if it has none."""
    given = tokenizer.settings.get("chat_template")
    if isinstance(given, str):
        return given
    named = {
        item.get("name"): item.get("template")
        for item in (given if isinstance(given, list) else ())
        if isinstance(item, Mapping)
    }
    found = named.get(name, named.get("default"))
    if not isinstance(found, str):
        raise FormatError("the model has no chat template: use generate with a plain text instead")
    return found
