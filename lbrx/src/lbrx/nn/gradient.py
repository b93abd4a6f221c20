"""Gradients with regard to the parameters of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lbrx.gradients.functions import value_and_grad as of_arguments
from lbrx.nn.module import Module


def value_and_grad(model: Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the value of another one, and its gradient with regard to the
    trainable parameters of a module, as a tree.

    >>> model = lbrx.nn.Linear(3, 1)
    >>> step = lbrx.nn.value_and_grad(model, lambda x: model(x).sum())
    >>> value, gradients = step(lbrx.ones((2, 3)))
    >>> gradients["bias"].tolist()
    [2.0]
    """

    def of_model(_: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    both = of_arguments(of_model)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, gradients = both(model, args, kwargs)
        return value, gradients

    return wrapped
