"""How models write calls of tools: the form of each template, and grammars that enforce it.

Models learn one form, which their chat templates show: an object of JSON with a name and arguments,
between markers. A template that knows no tools is told of them in the system message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models.chat import has_template, template_of
from lbrx.models.constraints import WHITESPACE
from lbrx.models.tokenizer import Tokenizer

TEXT = r"/(.|\n)*/"
THOUGHT_BEGIN, THOUGHT_END = "<think>", "</think>"


@dataclass(frozen=True)
class CallForm:
    """Calls of tools in the text of an answer."""

    begin: str
    """The marker before a call, or before a list of them; empty if it is the whole answer."""
    end: str
    key: str
    """The name of a call's arguments."""
    listed: bool = False
    """Whether all calls are in one list."""
    spaced: str = ""
    """What stands between a marker and the call."""


HERMES = CallForm("<tool_call>", "</tool_call>", "arguments", spaced="\n")
"""The form of Qwen's and Hermes' models, and that of models that know none."""
MISTRAL = CallForm("[TOOL_CALLS]", "", "arguments", listed=True)
PHI = CallForm("<|tool_call|>", "<|/tool_call|>", "arguments", listed=True)
GRANITE = CallForm("<|tool_call|>", "", "arguments", listed=True)
LLAMA = CallForm("", "", "parameters")
OTHER_FORMS = (
    "<function=",
    "<arg_key>",
    "[ARGS]",
    "<\uff5ctool",
    "<|channel|>",
    "<|tool_call_start|>",
)
"""What templates contain whose models write calls in forms that are not read here."""


def shows_tools(tokenizer: Tokenizer) -> bool:
    """Whether the chat template tells the model of tools."""
    return "tools" in template_of(tokenizer, "tool_use")


def form_of(tokenizer: Tokenizer) -> CallForm:
    """The form of a model's calls. Raises LbrxError if it has one that is not known."""
    template = template_of(tokenizer, "tool_use")
    if "tools" not in template:
        return HERMES
    if not any(mark in template for mark in OTHER_FORMS):
        for mark, form in (
            (HERMES.begin, HERMES),
            (MISTRAL.begin, MISTRAL),
            (PHI.end, PHI),
            (GRANITE.begin, GRANITE),
            ("<|python_tag|>", LLAMA),
            ('"parameters"', LLAMA),
        ):
            if mark in template:
                return form
    raise LbrxError("the model's chat template writes calls of tools in a form that is not known")


def with_system_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools: they are in the system message, and calls and
    results are texts."""
    written = [_as_text(message) for message in messages]
    if not tools:
        return written
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    form = f'{HERMES.begin}\n{{"name": NAME, "arguments": OBJECT}}\n{HERMES.end}'
    about = (
        f"You may call these tools:\n<tools>\n{lines}\n</tools>\nTo call one, answer with its name "
        f"and arguments as JSON:\n{form}"
    )
    if written and written[0]["role"] == "system":
        return [{"role": "system", "content": f"{written[0]['content']}\n\n{about}"}, *written[1:]]
    return [{"role": "system", "content": about}, *written]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        f"{HERMES.begin}\n{json.dumps(call['function'], ensure_ascii=False)}\n{HERMES.end}"
        for call in message.get("tool_calls") or ()
    ]
    return {
        "role": message["role"],
        "content": "\n".join([*([content] if content else []), *calls]),
    }


class Thought(Enum):
    """Whether a model reasons before its answer, between `<think>` and `</think>`."""

    NEVER = "never"
    MAYBE = "maybe"
    BEGUN = "begun"  # the prompt ends with the first marker


def thought_of(tokenizer: Tokenizer, prompt: Sequence[int]) -> Thought:
    """What may be expected of the answer to a prompt."""
    template = template_of(tokenizer) if has_template(tokenizer) else ""
    if tokenizer.token_id(THOUGHT_END) is None and THOUGHT_END not in template:
        return Thought.NEVER
    last = tokenizer.decode(prompt[-8:], special=True).rstrip()
    return Thought.BEGUN if last.endswith(THOUGHT_BEGIN) else Thought.MAYBE


@dataclass(frozen=True)
class AnswerRules:
    """What an answer may be, as a grammar: a thought, then text or calls of tools."""

    tokenizer: Tokenizer
    thought: Thought = Thought.NEVER
    form: CallForm = HERMES
    tools: Sequence[Mapping[str, Any]] = ()
    """Objects with a name and parameters, a JSON schema."""
    required: bool = False
    """Whether the answer has to be a call."""
    parallel: bool = True
    schema: Any = None
    """What the answer obeys if it is not a call."""

    def lark(self) -> str:
        """The grammar, which names each tool and follows its schema."""
        rules = {"text": TEXT}
        text = "text" if self.schema is None else f"%json {_schema(self.schema)}"
        answers = [] if self.required else [text]
        if self.tools:
            answers.append(self._calls(rules))
            rules["call"] = " | ".join(map(self._call, self.tools))
        if self.tools and not self.form.begin and answers[0] == "text":
            # What begins like a call is one.
            answers[0], rules["other"] = "other", r"/([^{](.|\n)*)?/"
        rules["answer"] = " | ".join(answers)
        rules["start"] = f"{self._thinking(rules)} answer"
        lines = [f"{self._name(name)}: {rule}" for name, rule in rules.items()]
        return "\n".join(["%llguidance {}", *lines, ""])

    @staticmethod
    def _name(rule: str) -> str:
        """A rule that matches as little as it can says so with its name."""
        return f"{rule}[lazy]" if rule in ("head", "thinking") else rule

    def _thinking(self, rules: dict[str, str]) -> str:
        first, last = map(self.tokenizer.added_token_id, (THOUGHT_BEGIN, THOUGHT_END))
        if self.thought is Thought.NEVER or (last is None and self.thought is Thought.MAYBE):
            return ""
        if last is None:
            rules["thinking"] = r"/(.|\n)*<\/think>/"
            return r"thinking /\n{0,2}/"
        if self.thought is Thought.BEGUN:
            return rf"text <[{last}]> /\n{{0,2}}/"
        return rf"(<[{first}]> text <[{last}]> /\n{{0,2}}/)?"

    def _calls(self, rules: dict[str, str]) -> str:
        begin, end = self._marker(self.form.begin), self._marker(self.form.end)
        if self.form.listed:
            more = ' (", " call)*' if self.parallel else ""
            calls = f'"[" call{more} "]" {end}'
        else:
            space = _literal(self.form.spaced)
            calls = f"{space} call {space} {end}"
            if self.parallel and self.form.begin:
                calls = f'{calls} ("\\n" {begin} {calls})*'
        if self.required or self.schema is not None:
            return f"{begin} {calls}"
        if not begin.startswith('"'):
            return f"text {begin} {calls}" if begin else calls
        rules["head"] = f"/(.|\\n)*{_escaped(self.form.begin)}/"
        return f"head {calls}"

    def _call(self, tool: Mapping[str, Any]) -> str:
        name = json.dumps(tool["name"])
        before = f'{{"name": {name}, "{self.form.key}": '
        return f'{_literal(before)} %json {_schema(tool["parameters"])} "}}"'

    def _marker(self, marker: str) -> str:
        """A marker as the token that it is, or as a text."""
        token = self.tokenizer.added_token_id(marker)
        return _literal(marker) if token is None else f"<[{token}]>"


def _schema(schema: Any) -> str:
    guidance = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    return json.dumps({**schema, **guidance} if isinstance(schema, Mapping) else schema)


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_<>" else f"\\{c}" for c in text)
