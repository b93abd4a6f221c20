"""The few names of PyObjC's `objc` that Metal programs use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from softmetal.api.memory import Pointer
from softmetal.api.objects import Object

__all__ = ["NO", "NULL", "YES", "autorelease_pool", "error", "nil", "objc_object", "varlist"]

nil = None
NULL = None  # passed for an error that the program ignores; the method still returns a tuple
varlist = Pointer
objc_object = Object
YES = True
NO = False


class error(Exception):  # noqa: N801 (PyObjC's name)
    """What PyObjC raises for Objective-C exceptions."""


def autorelease_pool() -> AbstractContextManager[Any]:
    """Nothing to drain: Python's references decide lifetimes."""
    return nullcontext()
