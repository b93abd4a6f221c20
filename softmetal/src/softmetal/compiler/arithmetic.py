"""Integer constant expressions, as attributes use them: `buffer(FIRST + 2)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable

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
    text = " ".join(t.rstrip("uUlL") if t[:1].isdigit() else t for t in tokens)
    try:
        return _value(ast.parse(text.replace("/", "//").replace("< <", "<<"), mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return int(_BINARY[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError(ast.dump(node))
