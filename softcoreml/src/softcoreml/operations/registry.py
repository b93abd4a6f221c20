"""The table of MIL operations: a name and an opset give the function that defines the operation.

A function takes MIL's inputs as keyword arguments under MIL's names. Tensors arrive as arrays,
scalars as NumPy scalars, strings and booleans as Python's, a variadic input (`values` of concat) as
a tuple of arrays, and an optional input that a program leaves out is not passed: its default is the
function's. It returns an array, or a tuple of arrays where the operation has several outputs.
Values of types under a byte (int4, uint1 to uint6) arrive one to an element, in int8 or uint8.

A float16 result may be returned in float32: the interpreter rounds each output to the type that the
program declares, so a function accumulates in float32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OPSETS = ("ios15", "ios16", "ios17", "ios18", "ios26")
"""The opsets of MIL by the iOS version that brought them, oldest first."""

Function = Callable[..., Any]


@dataclass(frozen=True)
class Definition:
    """One operation as one opset defines it."""

    name: str
    since: str
    function: Function


_DEFINITIONS: dict[str, list[Definition]] = {}


def operation(name: str, since: str = "ios15") -> Callable[[Function], Function]:
    """Register the decorated function as `name`, from the opset `since` on."""

    def register(function: Function) -> Function:
        known = _DEFINITIONS.setdefault(name, [])
        if any(one.since == since for one in known):
            raise ValueError(f"{name} of {since} is registered already")
        known.append(Definition(name, since, function))
        known.sort(key=lambda one: OPSETS.index(one.since))
        return function

    return register


def find(name: str, opset: str) -> Definition | None:
    """The newest definition of `name` that is not newer than `opset`, or None."""
    limit = OPSETS.index(opset)
    fitting = [one for one in _DEFINITIONS.get(name, []) if OPSETS.index(one.since) <= limit]
    return fitting[-1] if fitting else None


def names() -> list[str]:
    """The name of every operation there is, sorted."""
    return sorted(_DEFINITIONS)
