"""What a chat asks for, in whichever API: messages, tools, and what the answer may be."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models import LanguageModel, chat
from lbrx.models.tool_calls import (
    THOUGHT_BEGIN,
    THOUGHT_END,
    AnswerRules,
    CallForm,
    Thought,
    form_of,
    shows_tools,
    thought_of,
    with_system_tools,
)
from lbrx.serve.answer_reader import AnswerReader, Part, PartKind
from lbrx.serve.problems import RequestError

MOST_TOOLS = 512
TOOL_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False
    """Whether a schema that cannot be followed is an error."""

    @property
    def shown(self) -> dict[str, Any]:
        """As chat templates expect it."""
        about = {"description": self.description} if self.description else {}
        function = {"name": self.name, **about, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ChatRequest:
    """A conversation that the model answers."""

    messages: Sequence[Mapping[str, Any]]
    """In OpenAI's form; the arguments of calls are objects."""
    tools: Sequence[Tool] = ()
    required: bool = False
    """Whether the answer has to be a call."""
    parallel: bool = True
    """Whether it may be several calls."""
    thinking: bool | None = None
    """Whether the model reasons first; None leaves it to the model."""


@dataclass(frozen=True)
class Prepared:
    """A chat for a model: its prompt, the options that its answer needs, and how it is read."""

    tokens: list[int]
    thought: Thought
    form: CallForm | None
    options: dict[str, Any]

    def reader(self) -> AnswerReader:
        """A reader for one answer."""
        return AnswerReader(self.thought, self.form)


def prepare(model: LanguageModel, request: ChatRequest, schema: Any = None) -> Prepared:
    """Render a chat. Raises LbrxError for what the model's template refuses. `schema` is what the
    answer obeys if it is not a call."""
    tokenizer, tools = model.tokenizer, request.tools
    messages: Sequence[Mapping[str, Any]] = request.messages
    chat.check(messages)
    shown = [tool.shown for tool in tools]
    if not shows_tools(tokenizer):
        messages, shown = with_system_tools(messages, shown), []
    text = chat.render(tokenizer, messages, tools=shown or None, thinking=request.thinking)
    tokens = tokenizer.encode(text, special=False)
    thought = thought_of(tokenizer, tokens)
    form = form_of(tokenizer) if tools else None
    options: dict[str, Any] = {}
    if tools or (schema is not None and thought is not Thought.NEVER):
        options["grammar"] = _grammar(model, request, thought, form, schema)
    elif schema is not None:
        options["schema"] = schema
    markers = [THOUGHT_BEGIN, THOUGHT_END, *([form.begin, form.end] if form else [])]
    ids = filter(None, map(tokenizer.added_token_id, markers))
    if any(not tokenizer.decode([token]) for token in ids):
        options["show_special"] = True
    return Prepared(tokens, thought, form, options)


def _grammar(
    model: LanguageModel,
    request: ChatRequest,
    thought: Thought,
    form: CallForm | None,
    schema: Any,
) -> str:
    """The grammar of an answer. A tool that is not strict may have any object as its arguments if
    its schema has something that cannot be followed."""

    def lark(loose: bool) -> str:
        described = [
            {
                "name": tool.name,
                "parameters": ANY_OBJECT if loose and not tool.strict else tool.parameters,
            }
            for tool in request.tools
        ]
        form_or_none = {} if form is None else {"form": form}
        return AnswerRules(
            model.tokenizer,
            thought,
            tools=described,
            required=request.required,
            parallel=request.parallel,
            schema=schema,
            **form_or_none,
        ).lark()

    try:
        model.check_rules(grammar=lark(loose=False))
    except LbrxError:
        return lark(loose=True)
    return lark(loose=False)


def tool_of(name: Any, description: Any, parameters: Any, strict: Any, param: str) -> Tool:
    """A tool from the parts of its definition, checked."""
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        letters = "1 to 128 letters, digits, _ . : or -"
        raise RequestError(400, f"{param}: {name!r:.80} is not a name: give {letters}", param)
    if parameters is None:
        parameters = {**ANY_OBJECT, "properties": {}}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"{param}: the schema of {name} is not an object", param)
    about = description if isinstance(description, str) else ""
    return Tool(name, about, parameters, bool(strict))


def list_of_objects(value: Any, param: str, most: int = MOST_TOOLS) -> list[dict[str, Any]]:
    """A list of objects from a request; none for null."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise RequestError(400, f"{param}: give a list of objects", param)
    if len(value) > most:
        raise RequestError(400, f"{param}: give at most {most:,}", param)
    return value


def only_tool(tools: Sequence[Tool], name: Any, param: str) -> list[Tool]:
    """The tool of this name, which has to be called."""
    named = [tool for tool in tools if tool.name == name]
    if not named:
        raise RequestError(400, f"{param}: {name!r:.80} is not one of the tools", param)
    return named


@dataclass
class Call:
    """A call of a tool in an answer."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:9])  # Mistral's templates take 9

    @property
    def values(self) -> dict[str, Any] | None:
        """The arguments; None if the answer was cut before their end."""
        try:
            value = json.loads(self.arguments)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass
class Said:
    """What an answer has so far."""

    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Append the next part."""
        if part.kind is PartKind.REASONING:
            self.reasoning += part.text
        elif part.kind is PartKind.TEXT:
            self.text += part.text
        elif part.name is not None:
            self.calls.append(Call(part.name, part.text))
        else:
            self.calls[part.call].arguments += part.text
