"""Splits an answer, as it is generated, into reasoning, text and calls of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum

from lbrx.models.generation import overlap
from lbrx.models.tool_calls import THOUGHT_BEGIN, THOUGHT_END, CallForm, Thought

MOST_HEAD = 1024  # characters before the arguments of a call


class PartKind(StrEnum):
    """What a part of an answer is."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(frozen=True)
class Part:
    """The next part of an answer. A call begins with a part that has its name."""

    kind: PartKind
    text: str
    call: int = 0
    name: str | None = None


class _At(Enum):
    """Where in an answer the reader is."""

    BEGIN = 0  # white space before a thought or text
    THOUGHT = 1
    TEXT = 2
    HEAD = 3  # of a call, before its arguments
    ARGUMENTS = 4
    TAIL = 5  # after the arguments


class AnswerReader:
    """Reads one answer. It never fails: what does not have the form of a call is text."""

    def __init__(self, thought: Thought, form: CallForm | None) -> None:
        """`form` is that of calls where there may be some."""
        self._form = form
        self._thinks = thought is not Thought.NEVER
        self._after_thought = False
        self._at = _At.THOUGHT if thought is Thought.BEGUN else _At.BEGIN
        self._rest = ""
        self._marker = ""  # before the call that is read, which becomes text if it is none
        self.calls = 0
        self._json = _ValueEnd()
        self._is_listed = form is not None and form.listed
        self._closing = ("}]" if self._is_listed else "}") + (form.end if form else "")
        between = r"\s*".join([*map(re.escape, self._closing)])
        self._close = re.compile(between)
        key = re.escape(form.key if form else "")
        self._head = re.compile(
            rf'[\s\[,]*\{{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"{key}"\s*:\s*', re.DOTALL
        )

    def feed(self, text: str) -> list[Part]:
        """The parts that a new piece of the answer adds."""
        self._rest += text
        return list(self._read(final=False))

    def end(self) -> list[Part]:
        """The parts that were held back."""
        parts = list(self._read(final=True))
        if self._at is _At.HEAD and self._rest.strip():
            parts.append(self._call_in_another_order() or Part(PartKind.TEXT, self._whole_rest()))
        self._rest = ""
        return parts

    def _read(self, *, final: bool) -> Iterator[Part]:
        steps = {
            _At.BEGIN: self._read_begin,
            _At.THOUGHT: self._read_thought,
            _At.TEXT: self._read_text,
            _At.HEAD: self._read_head,
            _At.ARGUMENTS: self._read_arguments,
            _At.TAIL: self._read_tail,
        }
        before = None
        while before != (self._at, self._rest):
            before = self._at, self._rest
            yield from steps[self._at](final)

    def _read_begin(self, final: bool) -> Iterator[Part]:
        """White space is text only if neither a thought nor a call follows."""
        start = self._rest.lstrip()
        if self._after_thought:
            self._rest = start
        if self._thinks and start.startswith(THOUGHT_BEGIN):
            self._at, self._rest = _At.THOUGHT, start.removeprefix(THOUGHT_BEGIN)
        elif self._form is not None and not self._form.begin and start.startswith("{"):
            self._at, self._marker = _At.HEAD, ""
        elif final or (start and not (self._thinks and THOUGHT_BEGIN.startswith(start))):
            self._at = _At.TEXT
        yield from ()

    def _read_thought(self, final: bool) -> Iterator[Part]:
        said, found, rest = self._rest.partition(THOUGHT_END)
        if found:
            self._at, self._rest = _At.BEGIN, rest
            self._thinks, self._after_thought = False, True
        else:
            held = 0 if final else overlap(said, THOUGHT_END)
            said, self._rest = said[: len(said) - held], said[len(said) - held :]
        if said:
            yield Part(PartKind.REASONING, said)

    def _read_text(self, final: bool) -> Iterator[Part]:
        begin = self._form.begin if self._form is not None else ""
        said, found, rest = self._rest.partition(begin) if begin else (self._rest, "", "")
        if found:
            self._at, self._rest, self._marker = _At.HEAD, rest, begin
            said = said.rstrip()
        else:
            held = 0 if final or not begin else _held(said, begin)
            said, self._rest = said[: len(said) - held], said[len(said) - held :]
        if said and not (self.calls and said.isspace()):
            yield Part(PartKind.TEXT, said)

    def _read_head(self, final: bool) -> Iterator[Part]:
        found = self._head.match(self._rest)
        if found is None:
            if len(self._rest) > MOST_HEAD and not final:
                yield from self._no_call()
            return
        try:
            name = json.loads(found[1])
        except ValueError:
            yield from self._no_call()
            return
        self._at, self._rest, self._json = _At.ARGUMENTS, self._rest[found.end() :], _ValueEnd()
        yield Part(PartKind.CALL, "", self.calls, name)

    def _read_arguments(self, final: bool) -> Iterator[Part]:
        if not self._json.has_begun:
            self._rest = self._rest.lstrip()
        length = self._json.length(self._rest)
        said, self._rest = self._rest[:length], self._rest[length:]
        if said:
            yield Part(PartKind.CALL, said, self.calls)
        if self._json.is_complete:
            self._at = _At.TAIL
            self.calls += 1

    def _read_tail(self, final: bool) -> Iterator[Part]:
        """What closes a call; then another one of a list may follow."""
        rest = self._rest.lstrip()
        if self._is_listed and re.match(r"\}\s*,", rest):
            self._at, self._rest = _At.HEAD, rest[1:]
        elif closed := self._close.match(rest):
            self._at, self._rest = _At.TEXT, rest[closed.end() :]
        elif not self._closing.startswith("".join(rest.split())):
            self._at, self._rest = _At.TEXT, rest.removeprefix("}")
        yield from ()

    def _no_call(self) -> Iterator[Part]:
        """What was taken for a call is text."""
        said = self._whole_rest()
        self._at, self._rest = _At.TEXT, ""
        yield Part(PartKind.TEXT, said)

    def _whole_rest(self) -> str:
        return self._marker + self._rest

    def _call_in_another_order(self) -> Part | None:
        """A call whose arguments come before its name, which is known at its end alone."""
        form = self._form
        assert form is not None
        text = self._rest.strip().removesuffix(form.end).strip() if form.end else self._rest
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        self.calls += 1
        arguments = json.dumps(value.get(form.key, {}), ensure_ascii=False)
        return Part(PartKind.CALL, arguments, self.calls - 1, value["name"])


def _held(text: str, marker: str) -> int:
    """The length of what may begin a call: the start of a marker, and white space before it."""
    kept = text[: len(text) - overlap(text, marker)]
    return len(text) - len(kept.rstrip())


class _ValueEnd:
    """Finds the end of a JSON value that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.has_begun = self.is_complete = False

    def length(self, text: str) -> int:
        """How many of the next characters are of the value. A value that is neither an object, nor
        a list, nor a string ends before what closes the call."""
        self.has_begun = self.has_begun or bool(text)
        for place, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
                if not self._in_string and self._depth == 0:
                    return self._ended(place + 1)
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                if self._depth == 0:
                    return self._ended(place)
                self._depth -= 1
                if self._depth == 0:
                    return self._ended(place + 1)
        return len(text)

    def _ended(self, length: int) -> int:
        self.is_complete = True
        return length
