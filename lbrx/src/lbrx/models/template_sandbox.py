"""A jinja2 environment for templates of unknown origin: steps, sizes and time are bounded.

A template runs in the caller's thread, where Python cannot stop a single long operation, so each
operation that can grow a value is checked before it runs. What the compiled template does not
submit to the environment (loops, literals, `~`, slices) is rewritten into calls of its methods.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 100_000
"""Characters of a template."""
MAX_STEPS = 400_000
"""Turns of loops, calls and operations."""
MAX_SIZE = 4_000_000
"""Characters of a text, or of all texts of a list."""
MAX_ITEMS = 250_000
"""Items of a list or dictionary, with the items of its items."""
MAX_TOTAL = 250_000_000
"""The sizes of all values that are made."""
MAX_BITS = 1 << 14
MAX_SECONDS = 10.0
# Filters that only look at or rearrange the items of their argument.
_STRUCTURAL = frozenset(
    "abs attr count d default dictsort first float groupby int items last length list map max min "
    "random reject rejectattr reverse round select selectattr sort unique".split()
)
# Filters and methods whose results can be as large as the product of their arguments, or which
# take as long.
_MULTIPLYING = frozenset(
    "batch center expandtabs format indent join ljust lstrip replace rjust rstrip slice strip sum "
    "to_bytes tojson translate trim zfill".split()
)
# For web pages. Some take time that is quadratic in the size of their text.
_REMOVED = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
_WIDTH = re.compile(r"\d+")


class LimitExceeded(SecurityError):
    """A template would take too long or make something too large."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}: correct the template, or give the prompt as text")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """For one template: raises LimitExceeded when it exceeds a limit."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self.sized, **options)
        self.concat = self._concatenated  # type: ignore[method-assign]
        self._steps = self._total = 0
        self._end = time.monotonic() + MAX_SECONDS
        del self.globals["lipsum"]
        for name in _REMOVED:
            del self.filters[name]
        self.filters = {name: self._bounded(name, f) for name, f in self.filters.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise LimitExceeded(f"it has more than {MAX_SOURCE:,} characters")
        tree: nodes.Template = _Rewriter().visit(super()._parse(source, name, filename))
        return tree

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = self._bounded(name, function)

    def step(self) -> bool:
        """Count a step. Always true, so that the condition of a loop can begin with it."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise LimitExceeded(f"it takes more than {MAX_STEPS:,} steps")
        if time.monotonic() > self._end:
            raise LimitExceeded(f"it takes longer than {MAX_SECONDS:.0f} seconds")
        return True

    def sized(self, value: Any) -> Any:
        """A value that is small enough to be written out."""
        size_of(value)
        return value

    def made(self, value: Any) -> Any:
        """A new value, whose size is counted."""
        if isinstance(value, (str, bytes, list, tuple, dict)):
            self._count(len(value))
        return value

    def joined(self, *values: Any) -> str:
        """The operator `~`."""
        return self._concatenated(str(self.sized(value)) for value in values)

    def _count(self, size: int) -> None:
        self._total += size
        if size > MAX_SIZE or self._total > MAX_TOTAL:
            limit = f"{MAX_SIZE:,} characters or items, or {MAX_TOTAL:,} in all"
            raise LimitExceeded(f"its values have more than {limit}")

    def _concatenated(self, parts: Iterable[str]) -> str:
        found, size = [], 0
        for part in parts:
            size += len(part)
            if size > MAX_SIZE:
                break
            found.append(part)
        self._count(size)
        return "".join(found)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.step()
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(operator, left, right)
        elif operator == "*":
            count = left if isinstance(left, int) else right
            other = right if isinstance(left, int) else left
            if isinstance(count, int):
                self._count(size_of(other) * max(count, 0))
        elif operator == "+":
            self._count(size_of(left) + size_of(right))
        elif operator == "%" and isinstance(left, (str, bytes)):
            self._check_percent(left, right)
        return self.made(super().call_binop(context, operator, left, right))

    def _check_percent(self, text: str | bytes, values: Any) -> None:
        shown = text if isinstance(text, str) else text.decode("latin-1")
        given = values if isinstance(values, tuple) and "*" in shown else ()
        stars = sum(abs(value) for value in given if isinstance(value, int))
        widths = sum(int(width[:20]) for width in _WIDTH.findall(shown))
        self._count(widths + shown.count("%") * (size_of(values) + stars) + len(shown))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.step()
        name, receiver = getattr(__obj, "__name__", ""), getattr(__obj, "__self__", None)
        if name in _MULTIPLYING and isinstance(receiver, (str, bytes, int)):
            args = tuple(map(_listed, args))
            if name == "join" and args:
                __self._check_growth(name, args[0], (receiver,), {})
            else:
                __self._check_growth(name, receiver, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if __obj is dict or __obj is Namespace:
            __self._count(size_of(result))
        return __self.made(result)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose arguments and results are checked."""
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # the environment or context

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.step()
            given = args[skipped:]
            if name == "format":
                self._check_percent(str(self.sized(given[0])), kwargs or given[1:])
            elif name in _MULTIPLYING:
                given = (_listed(given[0]), *given[1:])
                self._check_growth(name, given[0], given[1:], kwargs)
            elif name not in _STRUCTURAL:
                size_of([*given, kwargs])
            return self.made(function(*args[:skipped], *given, **kwargs))

        return bounded

    def _check_growth(
        self, name: str, first: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Refuse an operation whose result would be too large, or which would take too long."""
        size = size_of(first)
        if name == "join":
            between = size_of([*args[:1], kwargs])
            self._count(size + between * (len(first) if hasattr(first, "__len__") else 1))
        elif name == "replace":
            named = {**dict(zip(("old", "new"), args, strict=False)), **kwargs}
            old, new = (str(self.sized(named.get(key, ""))) for key in ("old", "new"))
            text = first.decode("latin-1") if isinstance(first, bytes) else str(first)
            self._count(size + text.count(old) * len(new))
        else:
            values = (*args, *kwargs.values())
            factors = [1 + _amount(value) for value in values]
            if name == "sum" and any(isinstance(value, (list, tuple)) for value in values):
                factors.append(size)  # each addition copies the list
            if (1 + size) * math.prod(factors) > 10 * MAX_SIZE:
                raise LimitExceeded(f"the arguments of {name} are too large")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        of_map = value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            given = args[0] if of_map and args else kwargs
            return _BoundedFormatter(self).vformat(str(text), () if of_map else args, given)

        return formatted


class _BoundedFormatter(SandboxedFormatter):
    """`str.format`, with the width of each field counted."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        super().__init__(environment)
        self._bounds = environment

    def format_field(self, value: Any, format_spec: str) -> str:
        self._bounds.step()
        widths = sum(int(width[:20]) for width in _WIDTH.findall(format_spec))
        self._bounds._count(size_of(value) + widths)
        text: str = super().format_field(value, format_spec)
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._bounds._count(size_of(value))
        return super().convert_field(value, conversion)


class _Rewriter(NodeTransformer):
    """Makes a template call its environment where it otherwise would not."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("step")))
        if node.test is not None:
            node.test = nodes.And(_call("step"), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("step")))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def _literal(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        if isinstance(node, nodes.Tuple) and node.ctx != "load":
            return node
        return _call("sized", node)

    visit_List = visit_Tuple = visit_Dict = _literal  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("made", node) if isinstance(node.arg, nodes.Slice) else node


def _call(method: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(arguments), [], None, None)


def _check_bits(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * max(right, 0)
    if bits > MAX_BITS:
        raise LimitExceeded(f"an integer would have more than {MAX_BITS:,} bits")


def _amount(value: Any) -> int:
    """How many times an operation with this argument may repeat something."""
    return abs(value) if isinstance(value, int) else size_of(value)


def _listed(value: Any) -> Any:
    """A generator's items as a list, which has a size."""
    is_lazy = isinstance(value, (Iterator, range, KeysView, ValuesView, ItemsView))
    return list(value) if is_lazy else value


def size_of(value: Any) -> int:
    """The characters and items of a value, nested ones included, each time that they occur.

    Raises LimitExceeded beyond the limits: a list of a few lists can be larger than any memory.
    """
    size, items, left = 0, 0, [value]
    while left:
        one = left.pop()
        items += 1
        if isinstance(one, (str, bytes)):
            size += len(one)
        elif isinstance(one, int):
            size += one.bit_length() // 3
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one
        elif isinstance(one, dict):
            left += (*one.keys(), *one.values())
        elif isinstance(one, Namespace):
            left += object.__getattribute__(one, "_Namespace__attrs").values()
        elif isinstance(one, Mapping):
            left += (*one.keys(), *one.values())
        if size > MAX_SIZE or items + len(left) > MAX_ITEMS:
            limit = f"{MAX_SIZE:,} characters or {MAX_ITEMS:,} items"
            raise LimitExceeded(f"a value has more than {limit}")
    return size + items
