"""The column `vjp` of the operation table: how the gradient of a result reaches the operands.

A rule is a function whose parameters say what it reads, by name: `g` is the gradient of the result
(of all results as a tuple if there are several; None for one that is not floating), `output` the
result (a tuple, likewise), `shapes` the shapes of the operands, and `at` the place of the operand
whose gradient is wanted. Any other parameter is an operand or an attribute of the operation. What
no rule reads is not kept.

A rule returns the gradient in any shape that the operands broadcast to and in any floating dtype:
what uses the rules sums it to the operand's shape and casts it. None stands for zeros.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lbrx.ops.table import TABLE, VJPS

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Vjp:
    """The rules of one operation: one for each operand that has a gradient, or one for all."""

    rules: Mapping[str, Rule]
    """By the name of the operand."""
    together: Rule | None = None
    """Returns the gradients of all operands, by name."""

    @cached_property
    def parameters(self) -> Mapping[Rule, tuple[str, ...]]:
        """The names of the parameters of each rule."""
        every = [*self.rules.values(), *([self.together] if self.together else [])]
        return {rule: tuple(inspect.signature(rule).parameters) for rule in every}

    @property
    def reads(self) -> frozenset[str]:
        """The names of all parameters: operands, `output`, attributes and facts."""
        return self.read_for(self.rules.keys())

    def read_for(self, wanted: Iterable[str]) -> frozenset[str]:
        """What the rules read that give the gradients of these operands."""
        rules = [self.rules[name] for name in wanted if name in self.rules]
        rules += [self.together] if self.together else []
        return frozenset(name for rule in rules for name in self.parameters[rule])


@dataclass(frozen=True)
class NotDifferentiable:
    """An operation without gradients."""

    reason: str
    """A sentence for errors: why, and what to do instead."""


def differentiable(name: str, together: Rule | None = None, **rules: Rule) -> None:
    """Set the rules of an operation, by operand, or one function that returns all of them."""
    known = {operand.name for operand in TABLE[name].operands}
    if unknown := sorted(rules.keys() - known):
        raise ValueError(f"{name} has no operand {unknown[0]}: it has {', '.join(sorted(known))}")
    _set(name, Vjp(rules, together))


def not_differentiable(reason: str, *names: str) -> None:
    """Declare operations that have no gradient."""
    for name in names:
        _set(name, NotDifferentiable(reason))


def _set(name: str, column: Vjp | NotDifferentiable) -> None:
    if name in VJPS:
        raise ValueError(f"operation {name} has a gradient already: give another name")
    VJPS[name] = column
