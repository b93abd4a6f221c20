"""State of a trace (`lbrx.compile`): the function being traced, and its float arguments.

A float argument is a `TracedNumber` during the trace, so that a replay can change its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

_function: ContextVar[str | None] = ContextVar("function", default=None)


def traced_function() -> str | None:
    """The name of the function that is being traced in this context; None if there is none."""
    return _function.get()


@contextmanager
def tracing(function: str) -> Iterator[None]:
    """A context in which the function of this name is being traced."""
    token = _function.set(function)
    try:
        yield
    finally:
        _function.reset(token)


class TracedNumber:
    """A float argument of a compiled function, during its trace.

    As an operand of a tensor operation it becomes a parameter of the replay. Any other use reads
    its value (`was_read`), and the trace is then valid for that value only.
    """

    __slots__ = ("index", "value", "was_read")

    def __init__(self, value: float, index: int) -> None:
        self.value = value
        self.index = index
        self.was_read = False

    def __float__(self) -> float:
        self.was_read = True
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """For numpy, also where this is an element of a list."""
        return np.array(float(self), dtype)

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, form: str) -> str:
        return format(float(self), form)

    def __hash__(self) -> int:
        return hash(float(self))

    def __getattr__(self, name: str) -> Any:
        """The methods and attributes of float, applied to the value."""
        return getattr(float(self), name)


def _float_method(name: str) -> Any:
    """The special method of float, applied to the value."""

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
    setattr(TracedNumber, f"__{_name}__", _float_method(f"__{_name}__"))
