"""The indices of attributes, which may be constants and enumerators of the source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from softmetal.compiler.arithmetic import evaluate
from softmetal.compiler.tokens import Refusal, Token, tokenize

_DEEPEST = 8  # constants that are made of constants


def index_of(source: str, arguments: Sequence[Token], attribute: str) -> int:
    """The value of `attribute(arguments)`; raises Refusal if it is not an integer constant."""
    value = value_of(source, arguments)
    if value is None:
        spelled = " ".join(t.text for t in arguments)[:80]
        raise Refusal(
            arguments[0] if arguments else tokenize(source)[0],
            f"{attribute}({spelled}) is not an integer constant that softmetal can evaluate: "
            "write a number",
        )
    return value


def value_of(source: str, arguments: Sequence[Token]) -> int | None:
    """The value of an integer expression, None for another, such as one of template parameters."""
    return evaluate(_number(source, t.text, _DEEPEST) for t in arguments)


def _number(source: str, word: str, depth: int) -> str:
    """A number for a word that an enum or a constant of the source defines, else the word."""
    if not word.isidentifier() or depth == 0:
        return word
    found = re.search(rf"\b{word}\s*=\s*([\w\s+\-*<|()]+?)\s*[,;}}]", source)
    if found is None:
        return _implicit_enumerator(source, word)
    value = evaluate(_number(source, t.text, depth - 1) for t in tokenize(found.group(1)))
    return word if value is None else str(value)


def _implicit_enumerator(source: str, word: str) -> str:
    found = re.search(rf"\benum\b[^{{;]*{{([^}}]*?\b{word}\b)", source)
    if found is None:
        return word
    value = -1
    for item in found.group(1).split(","):
        _, _, given = item.partition("=")
        value = value + 1 if not given else evaluate(t.text for t in tokenize(given)) or 0
    return str(value)
