"""Functions of the selection code as text: an expression where one `return` says it all."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.Lambda


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text("utf-8"))


def _node(function: Callable[..., Any]) -> Function:
    """The function in the syntax tree of its file; a decorated one starts at its decorator."""
    code = function.__code__
    for node in ast.walk(_tree(code.co_filename)):
        if isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
            start, names = node.lineno, [each.arg for each in node.args.args]
            if start == code.co_firstlineno and tuple(names) == code.co_varnames[: len(names)]:
                return node
        elif isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    raise LookupError(f"{code.co_filename}:{code.co_firstlineno}")


class _Values(ast.NodeTransformer):
    """Replaces names of enclosing functions by the numbers and booleans that they stand for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = {k: v for k, v in values.items() if isinstance(v, bool | int | float)}

    def visit_Name(self, node: ast.Name) -> ast.AST:  # the name is ast's
        return ast.Constant(self.values[node.id]) if node.id in self.values else node


def expression(function: Callable[..., Any]) -> str | None:
    """What a function of one `return` returns; None for a longer one."""
    node = _node(function)
    body = node.body if isinstance(node, ast.Lambda) else _single_return(node)
    if body is None:
        return None
    copied = ast.parse(ast.unparse(body), mode="eval")
    return ast.unparse(_Values(dict(inspect.getclosurevars(function).nonlocals)).visit(copied))


def _single_return(node: ast.FunctionDef) -> ast.expr | None:
    body = [each for each in node.body if not _is_text(each)]
    if len(body) == 1 and isinstance(body[0], ast.Return):
        return body[0].value
    return None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def source(function: Callable[..., Any]) -> str:
    """The text of a longer function."""
    return textwrap.dedent(inspect.getsource(function)).strip()
