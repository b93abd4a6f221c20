"""YAML as data, within limits: mappings, lists, text, numbers, true, false and null.

PyYAML gives the events of a text, and the values are made here: aliases and merge keys count as
all that they stand for, so that a short text cannot stand for a huge value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lbrx.errors import FormatError
from lbrx.extras import install
from lbrx.files.formats.checks import shown

MAX_CHARACTERS = 1 << 20
MAX_VALUES = 100_000
"""Keys and values of all documents, those of an alias each time that it is used. Long texts count
as several, one for each 64 characters."""
MAX_DEPTH = 64
MAX_DOCUMENTS = 1_000
_CHARACTERS = 64

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NULL = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_TRUE, _FALSE = "true yes on", "false no off"
_BOOL = {
    spelled: value
    for words, value in ((_TRUE, True), (_FALSE, False))
    for word in words.split()
    for spelled in (word, word.title(), word.upper())
}
# Those that PyYAML reads as numbers, too, so that text which it writes without quotes stays text.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,38})")
_FLOAT = re.compile(r"(?:[-+]?[0-9]{1,99}\.[0-9]{0,99}|\.[0-9]{1,99})(?:[eE][-+][0-9]{1,9})?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(?:nan|NaN|NAN)")


@dataclass(frozen=True)
class _Value:
    """A value, the number of values in it and how deep they are."""

    value: Any
    size: int
    height: int = 0


def package() -> Any:
    """PyYAML, which is an extra; None if it is not installed."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    return yaml


def parse_yaml(text: str, name: str) -> list[Any]:
    """The values of a text's documents. Raises FormatError with the line of a problem; `name` is
    that of the file."""
    yaml = package()
    if yaml is None:
        raise FormatError(f"reading YAML needs PyYAML: {install('merge')}")
    if len(text) > MAX_CHARACTERS:
        raise FormatError(f"{name} is longer than {MAX_CHARACTERS:,} characters: give a short one")
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _bad(name, line, f"has the control character {found[0]!r}", "remove it")
    try:
        return _Reader(yaml, text, name).documents()
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        told = " ".join(str(getattr(problem, "problem", None) or problem).split())
        remedy = "check the indentation, brackets and quotes there"
        raise _bad(name, line, f"is not YAML ({told:.200})", remedy) from None


def _bad(name: str, line: int, problem: str, remedy: str) -> FormatError:
    return FormatError(f"{name}, line {line}: {problem}: {remedy}")


class _Reader:
    """Makes values of PyYAML's events, one document after the other."""

    def __init__(self, yaml: Any, text: str, name: str) -> None:
        self._yaml = yaml
        self._name = name
        loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
        self._events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self._values = 0
        self._anchors: dict[str, _Value | None] = {}

    def documents(self) -> list[Any]:
        result: list[Any] = []
        for event in self._events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                if len(result) == MAX_DOCUMENTS:
                    problem = f"more than {MAX_DOCUMENTS:,} documents"
                    raise self._wrong(event, problem, "put them into several files")
                self._anchors = {}
                result.append(self._next(next(self._events), 0).value)
        return result

    def _wrong(self, event: Any, problem: str, remedy: str) -> FormatError:
        return _bad(self._name, event.start_mark.line + 1, problem, remedy)

    def _next(self, event: Any, depth: int) -> _Value:
        """The value that begins with an event."""
        if isinstance(event, self._yaml.AliasEvent):
            return self._alias(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        is_scalar = isinstance(event, self._yaml.ScalarEvent)
        size = 1 + (len(event.value) // _CHARACTERS if is_scalar else 0)
        self._count(event, size, depth)
        if is_scalar:
            result = _Value(self._scalar(event), size)
        elif isinstance(event, self._yaml.SequenceStartEvent):
            result = self._list(event, depth)
        else:
            result = self._mapping(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = result
        return result

    def _count(self, event: Any, values: int, depth: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values, those of aliases (*) at each use"
            raise self._wrong(event, problem, "give fewer")
        if depth > MAX_DEPTH:
            raise self._wrong(event, f"nested deeper than {MAX_DEPTH} levels", "nest it less")

    def _alias(self, event: Any, depth: int) -> _Value:
        name = event.anchor
        found = self._anchors.get(name)
        if found is None:
            problem = "is used inside itself" if name in self._anchors else "is not defined above"
            raise self._wrong(event, f"*{name:.60} {problem}", f"write the value, or &{name:.60}")
        self._count(event, found.size, depth + found.height)
        return found

    def _list(self, event: Any, depth: int) -> _Value:
        self._check_tag(event, "seq")
        items: list[_Value] = []
        while not isinstance(part := next(self._events), self._yaml.SequenceEndEvent):
            items.append(self._next(part, depth + 1))
        return _collected([item.value for item in items], items)

    def _mapping(self, event: Any, depth: int) -> _Value:
        self._check_tag(event, "map")
        own: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        merged: list[dict[Any, Any]] = []
        parts: list[_Value] = []
        while not isinstance(part := next(self._events), self._yaml.MappingEndEvent):
            key = self._next(part, depth + 1)
            is_merge = self._is_merge(part)
            if isinstance(key.value, dict | list):
                raise self._wrong(part, "a list or mapping is a key", "write text as the key")
            mark = (key.value, is_merge)  # "<<" in quotes is a key like others
            if mark in lines:
                problem = f"{shown(str(key.value))} is a key already on line {lines[mark]}"
                raise self._wrong(part, problem, "keep one of the two")
            lines[mark] = part.start_mark.line + 1
            value = self._next(next(self._events), depth + 1)
            parts += [key, value]
            if is_merge:
                merged = self._merged(part, value.value)
            else:
                own[key.value] = value.value
        result: dict[Any, Any] = {}
        for one in (*reversed(merged), own):
            result.update(one)
        return _collected(result, parts)

    def _is_merge(self, event: Any) -> bool:
        """Whether a key is the one that takes over the keys of other mappings."""
        is_scalar = isinstance(event, self._yaml.ScalarEvent)
        return is_scalar and event.tag is None and not event.style and event.value == _MERGE

    def _merged(self, event: Any, value: Any) -> list[dict[Any, Any]]:
        """The mappings of a merge key: keys of the first take precedence."""
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) for one in found):
            problem = "<< takes over the keys of mappings, and is given something else"
            raise self._wrong(event, problem, "write an alias (*name) of a mapping, or several")
        return found

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", _TAG + kind):
            raise self._unknown_tag(event)

    def _unknown_tag(self, event: Any) -> FormatError:
        tag = event.tag.replace(_TAG, "!!", 1)
        return self._wrong(event, f"the tag {tag:.60} is not used here", "leave it out")

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.tag is None:
            return text if event.style else _plain(text)
        if event.tag in ("!", f"{_TAG}str"):
            return text
        kinds = {"null": type(None), "bool": bool, "int": int, "float": float}
        kind = kinds.get(event.tag.removeprefix(_TAG)) if event.tag.startswith(_TAG) else None
        if kind is None:
            raise self._unknown_tag(event)
        value = _plain(text)
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            tag = event.tag.replace(_TAG, "!!", 1)
            raise self._wrong(event, f"{shown(text)} is not a {tag}", f"leave out {tag}")
        return value


def _collected(value: Any, parts: list[_Value]) -> _Value:
    size = 1 + sum(part.size for part in parts)
    return _Value(value, size, 1 + max((part.height for part in parts), default=0))


def _plain(text: str) -> Any:
    """What a text without quotes stands for. Dates stay text, as do 012, 1:30 and 1e-5."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if found := _NOT_FINITE.fullmatch(text):
        return float(f"{found[1]}inf") if found[2] else float("nan")
    return text
