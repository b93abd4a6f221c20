"""While a function is traced: who asks whether it is, and floats that a replay may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_function: ContextVar[str | None] = ContextVar("function", default=None)


def traced_function() -> str | None:
    """The name of the function that is being traced."""
    return _function.get()


@contextmanager
def tracing(function: str) -> Iterator[None]:
    """Within it, a function of this name is called to be traced."""
    token = _function.set(function)
    try:
        yield
    finally:
        _function.reset(token)


class TracedNumber:
    """A float argument of a compiled function.

    Beside a tensor it stays open. Whoever looks at its value otherwise gets it, but then the trace
    holds for that value alone.
    """

    __slots__ = ("index", "looked_at", "value")

    def __init__(self, value: float, index: int) -> None:
        self.value = value
        self.index = index
        self.looked_at = False

    def __float__(self) -> float:
        self.looked_at = True
        return self.value

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, form: str) -> str:
        return format(float(self), form)

    def __hash__(self) -> int:
        return hash(float(self))

    def __getattr__(self, name: str) -> Any:
        """Methods of a float, of the value."""
        return getattr(float(self), name)


def _of_value(name: str) -> Any:
    def method(self: TracedNumber, *others: Any) -> Any:
        plain = [float(o) if isinstance(o, TracedNumber) else o for o in others]
        if any(not isinstance(o, int | float) for o in plain):
            return NotImplemented
        return getattr(float(self), name)(*plain)

    return method


for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow", "neg", "pos", "abs", "int", "bool", "round", "trunc", "floor"),
    *("ceil", "eq", "ne", "lt", "le", "gt", "ge", "divmod", "rdivmod"),
):
    setattr(TracedNumber, f"__{_name}__", _of_value(f"__{_name}__"))
