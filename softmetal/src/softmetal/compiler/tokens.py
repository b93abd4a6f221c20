"""Tokens of preprocessed MSL, by position, so that edits keep the user's lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_PATTERN = re.compile(
    r"""
    (?P<directive>^[ \t]*\#[^\n]*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.]|'(?=\w))*)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<op>::|->|\+\+|--|&&|\|\||[=!<>+\-*/%&|^]=|<%|%>|%:|:>|<:(?!:[^:>])|\S)
    """,
    re.VERBOSE | re.MULTILINE,
)
_RAW = re.compile(r'"([^\s()\\]{0,16})\(.*?\)\1"', re.DOTALL)
_RAW_PREFIXES = frozenset({"R", "LR", "uR", "UR", "u8R"})
_OPENERS = {"(": ")", "[": "]", "{": "}"}
_MARKER = re.compile(r'^# (\d{1,10}) "((?:[^"\\\n]|\\.)*)"[ \d]*(?:\n|\Z)', re.MULTILINE)
MAX_NESTING = 256  # of brackets, as in clang


class Token(NamedTuple):
    """A piece of the text. `kind` is directive, word, number, string or op."""

    kind: str
    text: str
    start: int
    end: int


class Refusal(Exception):
    """A construct that is refused, at the token that shows it."""

    def __init__(self, token: Token, message: str) -> None:
        super().__init__(message)
        self.token = token
        self.message = message


class LineMarker(NamedTuple):
    """`# 3 "file"` at [start, end) of a preprocessed text: where the following lines are from."""

    start: int
    end: int
    line: int
    spelled: str  # the name with its escapes

    @property
    def file(self) -> str:
        return re.sub(r"\\(.)", r"\1", self.spelled)


def line_markers(text: str) -> Iterator[LineMarker]:
    """The line markers that clang wrote, in order: not those in raw strings."""
    found: Iterator[re.Match[str] | None]
    if 'R"' in text:
        places = (token.start for token in tokenize(text) if token.kind == "directive")
        found = (_MARKER.match(text, place) for place in places)
    else:
        found = _MARKER.finditer(text)
    for match in found:
        if match is not None:
            yield LineMarker(match.start(), match.end(), int(match[1]), match[2])


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`. `>` is always a separate token, so that templates nest."""
    tokens: list[Token] = []
    search, position = _PATTERN.search, 0
    while (found := search(text, position)) is not None:
        kind = found.lastgroup or "op"
        start, end = found.span()
        piece = found.group(kind)
        if kind == "word" and piece in _RAW_PREFIXES and (raw := _RAW.match(text, end)):
            kind, end, piece = "string", raw.end(), text[start : raw.end()]
        tokens.append(Token(kind, piece, start, end))
        position = end
    return tokens


def match_brackets(tokens: list[Token]) -> dict[int, int]:
    """For each ( [ { the index of its partner. What is not closed has none: clang will say so.

    Raises Refusal where brackets nest too deeply.
    """
    partner: dict[int, int] = {}
    open_at: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind != "op":
            continue
        if token.text in _OPENERS:
            open_at.append(index)
            if len(open_at) > MAX_NESTING:
                raise Refusal(token, f"brackets nest more than {MAX_NESTING} deep")
        elif open_at and _OPENERS[tokens[open_at[-1]].text] == token.text:
            partner[open_at.pop()] = index
    return partner


def apply_edits(text: str, edits: list[tuple[int, int, str]]) -> str:
    """`text` with each (start, end, replacement) applied; the edits do not overlap."""
    pieces, position = [], 0
    for start, end, replacement in sorted(edits):
        pieces += [text[position:start], replacement]
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def blank(text: str) -> str:
    """Spaces of the same shape: lines and columns after it stay where they were."""
    return re.sub(r"[^\n]", " ", text)
