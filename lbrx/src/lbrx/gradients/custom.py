"""Functions with a gradient of their own, and functions that are computed again for theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lbrx.errors import GradientError
from lbrx.gradients.backward import gradients
from lbrx.gradients.recording import (
    Recorded,
    Scope,
    belongs,
    current_scope,
    leaf,
    recorded,
    redirected,
)
from lbrx.tensors import random, wrapping
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.wrapping import CustomRule
from lbrx.trees import leaves, tree_map


def custom_vjp(function: Callable[..., Any]) -> CustomVjp:
    """A function whose gradient is a function of yours.

    The function takes tensors, or trees of them, by position and returns a tensor or a tree. The
    rule is a function of its arguments (a tuple), the gradients of its results and the results; it
    returns a gradient for each tensor among the arguments, or None where there is none.

    >>> @lbrx.custom_vjp
    ... def clipped(x):
    ...     return x.clip(-1, 1)
    >>> @clipped.vjp
    ... def passed_through(primals, cotangent, output):
    ...     return cotangent
    >>> lbrx.grad(lambda x: clipped(x * 3).sum())(lbrx.tensor([5.0])).tolist()
    [3.0]
    """
    return CustomVjp(function)


class CustomVjp:
    """A function with a gradient rule, as `lbrx.custom_vjp` returns it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._rule: CustomRule | None = None
        functools.update_wrapper(self, function)

    def vjp(self, rule: CustomRule) -> CustomRule:
        """Set the rule; returns it."""
        self._rule = rule
        return rule

    def __repr__(self) -> str:
        return f"<lbrx.custom_vjp {getattr(self.function, '__qualname__', self.function)}>"

    def __call__(self, *values: Any) -> Any:
        wrapper = wrapping.innermost(list(leaves(values))) if wrapping.is_inside() else None
        if wrapper is None:
            return self.function(*values)
        if self._rule is None:
            raise GradientError(f"{self} has no rule yet: set it with @{self.__name__}.vjp")
        # Called again, for outer gradients to find this function too.
        return wrapper.run_custom(self, self._rule, values)

    __name__: str


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a gradient computes again instead of keeping what its rules read.

    Within a gradient only its arguments and results are kept: that is less memory and one more
    forward pass. Its arguments and results are tensors, or trees of them; tensors that it refers
    to otherwise, as the parameters of a module, have their gradients too. Random numbers repeat.

    >>> layer = lbrx.checkpoint(lambda x: (x * x).exp())
    >>> lbrx.grad(lambda x: layer(x).sum())(lbrx.tensor([0.0, 1.0])).tolist()
    [0.0, 5.4365639...]
    """

    @functools.wraps(function)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        scope = current_scope() if wrapping.is_inside() else None
        if scope is None:
            return function(*args, **kwargs)
        return _checkpointed(function, args, kwargs, scope)

    return checkpointed


def _checkpointed(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope
) -> Any:
    given = tree_map(redirected, (args, kwargs))
    own = [x for x in leaves(given) if belongs(x, scope)]
    inner_args, inner_kwargs = tree_map(lambda x: x.value if belongs(x, scope) else x, given)
    numbers = random.state()
    outer, scope.captured = scope.captured, {}
    try:
        outputs = function(*inner_args, **inner_kwargs)
        captured = scope.captured
    finally:
        scope.captured = outer
    if outer is not None:  # an enclosing checkpoint computes this again too
        outer.update(captured)
        return outputs
    results = [x for x in leaves(outputs) if isinstance(x, Tensor)]
    if not own and not captured:
        return outputs
    others = list(captured.values())

    def pull(cotangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        with wrapping.scope() as level, Scope(level) as inner, random.repeated(numbers):
            arguments = [leaf(_again(x.value), inner) for x in own]
            constants = [leaf(x.value, inner) for x in others]
            rest = iter(arguments)
            args, kwargs = tree_map(lambda x: next(rest) if belongs(x, scope) else x, given)
            kept = scope.redirected
            scope.redirected = {x.key: y for x, y in zip(others, constants, strict=True)}
            try:
                again = function(*args, **kwargs)
                made = [x for x in leaves(again) if isinstance(x, Tensor)]
                pairs = [
                    (x, g)
                    for x, g in zip(made, cotangents, strict=True)
                    if g is not None and isinstance(x, Recorded) and x.scope is inner
                ]
                # Checkpoints within this one run again now, and use what it captured too.
                return gradients(pairs, [*arguments, *constants])
            finally:
                scope.redirected = kept

    made = iter(recorded([*own, *others], results, pull))
    return tree_map(lambda x: next(made) if isinstance(x, Tensor) else x, outputs)


def _again(value: Tensor) -> Tensor:
    """The same values for other nodes of the graph: equal pending operations are one node, and what
    is to be computed again would be what was computed before."""
    return call("copy", value) if value.device == "metal" else value
