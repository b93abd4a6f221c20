"""Integer constant expressions, as attributes use them: `buffer(FIRST + 2)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable
from itertools import islice

_MAX_TOKENS, _MAX_DIGITS, _BITS = 64, 64, 64
_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
}


def evaluate(tokens: Iterable[str]) -> int | None:
    """The value of C++ integer arithmetic, None for anything else."""
    words = [_literal(t) if t[:1].isdigit() else t for t in islice(tokens, _MAX_TOKENS + 1)]
    if len(words) > _MAX_TOKENS or any(len(word) > _MAX_DIGITS for word in words):
        return None
    text = " ".join(words)
    try:
        return _value(ast.parse(text.replace("/", "//").replace("< <", "<<"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _literal(text: str) -> str:
    """A C++ integer literal as Python has it: octal ones begin with 0o there."""
    digits = text.rstrip("uUlL")
    return f"0o{digits}" if digits[0] == "0" and digits.isdigit() else digits


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.LShift | ast.RShift) and not 0 <= right < _BITS:
            raise ValueError(f"a shift by {right}")
        return int(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError(ast.dump(node))
