"""Swizzles as operands of operators that the program declares itself.

A swizzle is a property of a class. Once look-up finds an operator function in a template, clang
resolves the operator when it instantiates the template, and then forgets to read the property.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from softmetal.compiler.syntax import Syntax

VALUE = ".sm_value()"
"""Behind a swizzle, a call that reads it."""
_SWIZZLE = re.compile(r"[xyzw]{2,4}|[rgba]{2,4}")
_OPERATORS = frozenset("+ - * / % & | ^ ! ~ < > == != <= >= && || += -= *= /= %= &= |= ^=".split())
_MEMBER = (".", "->")


def operands(syntax: Syntax) -> Iterator[int]:
    """The indices of swizzles beside an operator that the program declares.

    Names that the program declares too may be members of its own classes, and are left alone.
    """
    words = [index for index, token in enumerate(syntax.tokens) if token.kind == "word"]
    declared = {syntax.text(i + 1) for i in words if syntax.text(i) == "operator"} & _OPERATORS
    if not declared:
        return
    swizzles = [index for index in words if _SWIZZLE.fullmatch(syntax.text(index))]
    own = {syntax.text(i) for i in swizzles if syntax.text(i - 1) not in _MEMBER}
    for index in swizzles:
        beside = {syntax.text(index + 1), syntax.text(_start(syntax, index) - 1)}
        if beside & declared and syntax.text(index) not in own:
            yield index


def _start(syntax: Syntax, index: int) -> int:
    """The first token of `a::b[i].c(x).xy`, given its last."""
    at = index
    while syntax.text(at - 1) in (*_MEMBER, "::"):
        at -= 2
        while at in syntax.opener:  # an index, arguments or parentheses
            at = syntax.opener[at]
            if syntax.tokens[at - 1].kind != "word" and at - 1 not in syntax.opener:
                return at
            at -= 1
    return at
