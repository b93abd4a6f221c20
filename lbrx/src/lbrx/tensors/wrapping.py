"""Calls of operations within functions that are being transformed, by a gradient or by `vmap`.

A transformation gives the function tensors that wrap others. An operation on them is not run by a
device but by the wrapper: that of the innermost transformation, which runs it on what it wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbrx.tensors.core import Tensor

open_scopes = 0
"""Transformations that are in progress, in all threads: without one no operand is looked at."""
_levels = count(1)
_lock = Lock()
_inside: ContextVar[bool] = ContextVar("inside", default=False)

CustomRule = Callable[[tuple[Any, ...], Any, Any], Any]
"""From the arguments of a function, the gradients of its results and the results to the gradients
of the arguments: None for those without one."""


class Wrapper:
    """What the tensors of a transformation are besides tensors."""

    __slots__ = ()

    @property
    def level(self) -> int:
        """The level of the transformation: inner ones have higher ones. 0 once it has ended."""
        raise NotImplementedError

    def run(
        self, name: str, values: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        """The results of an operation, of whose operands none has a higher level."""
        raise NotImplementedError

    def run_custom(
        self, function: Callable[..., Any], rule: CustomRule | None, values: tuple[Any, ...]
    ) -> Any:
        """The results of a function that has a gradient rule of its own."""
        raise NotImplementedError

    def unwrapped(self) -> Tensor:
        """The same values without gradients."""
        raise NotImplementedError


@contextmanager
def scope() -> Iterator[int]:
    """A transformation in progress, with its level."""
    global open_scopes
    with _lock:
        open_scopes += 1
    token = _inside.set(True)
    try:
        yield next(_levels)
    finally:
        _inside.reset(token)
        with _lock:
            open_scopes -= 1


def innermost(values: Sequence[Any]) -> Wrapper | None:
    """The wrapper of the innermost transformation among operands."""
    innermost_wrapper, level = None, 0
    for value in values:
        if isinstance(value, Wrapper) and value.level > level:
            innermost_wrapper, level = value, value.level
    return innermost_wrapper


def results(
    name: str, values: Sequence[Any], attributes: dict[str, Any]
) -> tuple[Tensor, ...] | None:
    """The results of an operation whose operands belong to a transformation; None otherwise."""
    wrapper = innermost(values)
    return None if wrapper is None else wrapper.run(name, values, attributes)


def is_inside() -> bool:
    """Whether a transformation is in progress in this thread."""
    return open_scopes > 0 and _inside.get()
