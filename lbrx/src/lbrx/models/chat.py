"""Turns the messages of a conversation into text, with the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lbrx.errors import FormatError, LbrxError
from lbrx.models.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""{"role": "system", "user" or "assistant", "content": a text or a list of parts}, where a part is
{"type": "text", "text": a text}."""
_MAX_DATE_FORMAT = 200  # characters
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def render(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The text of a conversation, up to where the model's answer begins.

    Raises LbrxError for bad messages, and FormatError if the template is missing or fails.
    """
    check(messages)
    jinja, sandbox = _library()
    environment = sandbox.BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.add_filter("tojson", _to_json)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    source = _template(tokenizer)
    special = {key: tokenizer.special_token(key) for key in _SPECIAL}
    try:
        template = environment.from_string(source)
        given = [_with_text(message) for message in messages]
        text: str = template.render(messages=given, add_generation_prompt=True, **special)
    except jinja.TemplateError as problem:
        raise FormatError(f"the model's chat template failed: {problem!s:.500}") from None
    except Exception as problem:
        # Templates are programs and raise errors of any type.
        raise FormatError(
            f"the model's chat template failed: {type(problem).__name__}: {problem!s:.500}"
        ) from None
    return text


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


def _template(tokenizer: Tokenizer) -> str:
    given = tokenizer.settings.get("chat_template")
    if isinstance(given, str):
        return given
    named = {
        item.get("name"): item.get("template")
        for item in (given if isinstance(given, list) else ())
        if isinstance(item, Mapping)
    }
    found = named.get("default")
    if not isinstance(found, str):
        raise FormatError("the model has no chat template: use generate with a plain text instead")
    return found


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """JSON without the HTML escapes of jinja's own filter, as in transformers."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: object) -> None:
    jinja, _ = _library()
    raise jinja.TemplateError(message if isinstance(message, str) else type(message).__name__)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern[:_MAX_DATE_FORMAT])


def _library() -> tuple[Any, Any]:
    """The package jinja2, which only chat templates need, and our sandbox of it."""
    try:
        import jinja2

        from lbrx.models import template_sandbox
    except ImportError:
        raise LbrxError(
            "chat templates need the package jinja2: pip install 'lbrx[models]'"
        ) from None
    return jinja2, template_sandbox
