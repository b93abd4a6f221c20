"""`grad`, `value_and_grad` and `vjp`: gradients of functions of tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lbrx.errors import DtypeError, ShapeError
from lbrx.gradients.backward import gradients
from lbrx.gradients.recording import Recorded, Scope, belongs, leaf
from lbrx.tensors import wrapping
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import ones, zeros
from lbrx.trees import tree_map


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] | None = None,
    argnames: str | Sequence[str] = (),
    *,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that returns the value of another one and its gradient.

    The function returns a floating scalar, or a tuple that begins with one; the value is what it
    returns. The gradient is that of the first argument, of the arguments at `argnums` (a tuple for
    a sequence of them), or of those named in `argnames` (a dictionary; with argnums too, a pair of
    both). An argument is a tensor, or a list, tuple, dictionary or module of tensors: its gradient
    has the same form, with the shapes and dtypes of the floating tensors and None for what else is
    in it. A module's gradient is that of its trainable parameters.

    With has_aux=True the function returns a pair of the scalar and anything else.

    A value that is not a floating scalar raises ShapeError or DtypeError, arguments without a
    floating tensor raise TypeError, and an operation without a gradient GradientError.

    >>> f = lbrx.value_and_grad(lambda x: (x * x).sum())
    >>> value, gradient = f(lbrx.tensor([1.0, 3.0]))
    >>> value.item(), gradient.tolist()
    (10.0, [2.0, 6.0])
    """
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    if argnums is None and not names:
        argnums = 0
    places = () if argnums is None else argnums
    numbers = tuple(places) if isinstance(places, Sequence) else (places,)
    numbers = tuple(map(operator.index, numbers))

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        wanted = _Wanted(function, args, kwargs, numbers, names)
        value, found = wanted.computed(has_aux)
        positional = tuple(found[: len(numbers)])
        named = dict(zip(names, found[len(numbers) :], strict=True))
        own = positional if isinstance(argnums, Sequence) or not positional else positional[0]
        if not names:
            return value, own
        return value, named if argnums is None else (own, named)

    return both


def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] | None = None,
    argnames: str | Sequence[str] = (),
    *,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that returns the gradient of another one: as `value_and_grad`, without the value.

    With has_aux=True it returns a pair of the gradient and what the function returned besides.

    >>> lbrx.grad(lambda x: (x ** 3).sum())(lbrx.tensor([1.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    both = value_and_grad(function, argnums, argnames, has_aux=has_aux)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


@dataclass(frozen=True)
class _Wanted:
    """A call of a function, and the arguments whose gradients are wanted."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    numbers: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def places(self) -> list[int | str]:
        """Where the arguments are: numbers and names."""
        return [*self.numbers, *self.names]

    def computed(self, has_aux: bool) -> tuple[Any, list[Any]]:
        with wrapping.scope() as level, Scope(level) as scope:
            arguments = [_Argument(self._given(place)) for place in self.places]
            try:
                value, loss = self._value(scope, arguments, has_aux)
                one = ones((), loss.dtype, loss.device)
                found = _followed([(loss, one)], arguments, scope)
            finally:  # not before: checkpoints run again with the parameters of modules
                for argument in arguments:
                    argument.restore()
            return tree_map(functools.partial(_ended, scope), value), found

    def _given(self, place: int | str) -> Any:
        if isinstance(place, str):
            if place not in self.kwargs:
                raise TypeError(f"argnames has {place!r}, which is not given: give it by name")
            return self.kwargs[place]
        if not -len(self.args) <= place < len(self.args):
            raise TypeError(f"argnums has {place}, and {len(self.args)} arguments are given")
        return self.args[place]

    def _value(self, scope: Scope, arguments: list[_Argument], has_aux: bool) -> tuple[Any, Tensor]:
        args, kwargs = list(self.args), dict(self.kwargs)
        for place, argument in zip(self.places, arguments, strict=True):
            inner = argument.recorded(scope)
            if isinstance(place, str):
                kwargs[place] = inner
            else:
                args[place] = inner
        value = self.function(*args, **kwargs)
        if has_aux and not (isinstance(value, tuple) and len(value) == 2):
            raise TypeError("has_aux=True: return a pair of the value and anything else")
        return value, _checked(value[0] if isinstance(value, tuple) and value else value)


class _Argument:
    """An argument whose gradient is wanted: its floating tensors become leaves."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.is_module = hasattr(given, "trainable_parameters")
        self.tree = given.trainable_parameters() if self.is_module else given
        self.leaves: list[Recorded] = []

    def recorded(self, scope: Scope) -> Any:
        """The argument with leaves in place of its floating tensors; a module holds them itself
        until `restore`."""

        def replaced(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dtype.is_float:
                return value
            self.leaves.append(leaf(value, scope))
            return self.leaves[-1]

        inner = tree_map(replaced, self.tree)
        if not self.leaves:
            raise TypeError(
                f"{type(self.given).__name__} has no floating tensor to take a gradient of: "
                "give one, or choose arguments with argnums"
            )
        if not self.is_module:
            return inner
        self.given.update(inner)
        return self.given

    def restore(self) -> None:
        """Give a module its own parameters back."""
        if self.is_module:
            self.given.update(self.tree)

    def gradient(self, found: Sequence[Tensor]) -> Any:
        """The gradients of the leaves in the form of the argument."""
        rest = iter(found)

        def of(value: Any) -> Any:
            is_leaf = isinstance(value, Tensor) and value.dtype.is_float
            return next(rest) if is_leaf else None

        return tree_map(of, self.tree)


def _followed(
    results: Sequence[tuple[Tensor, Tensor]], arguments: Sequence[_Argument], scope: Scope
) -> list[Any]:
    """The gradients of arguments, given those of results."""
    leaves = [each for argument in arguments for each in argument.leaves]
    own = [(result, g) for result, g in results if belongs(result, scope)]
    found = gradients(own, leaves)  # type: ignore[arg-type]
    rest = iter(
        zeros(each.shape, each.dtype, each.device) if g is None else g
        for each, g in zip(leaves, found, strict=True)
    )
    return [argument.gradient([next(rest) for _ in argument.leaves]) for argument in arguments]


def _checked(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"the function returns {type(value).__name__}: return a scalar tensor")
    if value.shape != ():
        raise ShapeError(
            f"the function returns shape {value.shape}: return a scalar, as with .sum() or .mean()"
        )
    if not value.dtype.is_float:
        raise DtypeError(f"the function returns {value.dtype}: return a floating scalar")
    return value


def _ended(scope: Scope, value: Any) -> Any:
    """A value of a function without the records of the gradient that has ended."""
    return value.value if belongs(value, scope) else value


def vjp(
    function: Callable[..., Any], primals: Sequence[Any], cotangents: Sequence[Tensor]
) -> tuple[list[Tensor], list[Any]]:
    """The results of a function and the gradients of its arguments, given those of the results.

    The function is called with the primals and returns a tensor, or a list or tuple of them;
    cotangents are as many tensors of the same shapes, otherwise ShapeError is raised.

    >>> outputs, (gradient,) = lbrx.vjp(lambda x: x * x, [lbrx.tensor([3.0])], [lbrx.tensor([2.0])])
    >>> outputs[0].tolist(), gradient.tolist()
    ([9.0], [12.0])
    """
    with wrapping.scope() as level, Scope(level) as scope:
        arguments = [_Argument(primal) for primal in primals]
        try:
            made = function(*(argument.recorded(scope) for argument in arguments))
            outputs = list(made) if isinstance(made, list | tuple) else [made]
            shapes = [x.shape for x in outputs], [g.shape for g in cotangents]
            if shapes[0] != shapes[1]:
                raise ShapeError(
                    f"the results have the shapes {shapes[0]} and the cotangents {shapes[1]}: "
                    "give one cotangent of the same shape for each result"
                )
            found = _followed(list(zip(outputs, cotangents, strict=True)), arguments, scope)
        finally:
            for argument in arguments:
                argument.restore()
        return [_ended(scope, x) for x in outputs], found


def stop_gradient(value: Any) -> Any:
    """The same tensors as constants: no gradient passes through them. Trees are taken too.

    >>> lbrx.grad(lambda x: (x * lbrx.stop_gradient(x)).sum())(lbrx.tensor([3.0])).tolist()
    [3.0]
    """
    return tree_map(lambda x: x.unwrapped() if isinstance(x, wrapping.Wrapper) else x, value)
