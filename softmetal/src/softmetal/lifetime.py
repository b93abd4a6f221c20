"""What ends with the memory of an object, and not with the finaliser that the collector calls.

The cyclic collector calls `__del__` of every object of a dead cycle before it frees one, and an
object of the cycle may keep the others alive: memory that `__del__` gives back may still be in use.
Weak references are no help, they are cleared before that. Two ways are right:

- An object whose `__del__` gives something back calls `ended` there, which asks
  `gc.is_finalized(self)`: it is true if the collector calls. This costs nothing otherwise.
- An object that is made seldom keeps an `AtDeallocation` from the start, and needs no `__del__`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from gc import is_finalized

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes = (ctypes.py_object,)
_untrack.restype = None


class Untracked:
    """An object that the cyclic collector does not know: it exists until its last reference is
    gone, as do weak references to it. What it refers to must not refer to it."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        _untrack(self)


class AtDeallocation(Untracked):
    """Calls `end(*arguments)` when nothing refers to it, but not when the process exits.

    This may be at any moment on any thread: `end` takes no lock.
    """

    __slots__ = ("_arguments", "_end")

    def __init__(self, end: Callable[..., object], *arguments: object) -> None:
        self._end, self._arguments = end, arguments
        super().__init__()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._end(*self._arguments)


def ended(owner: object, end: Callable[..., object], *arguments: object) -> AtDeallocation | None:
    """For `owner.__del__`, which keeps the result: call `end(*arguments)` now, or at the owner's
    deallocation if it is the collector that calls `__del__`."""
    if is_finalized(owner):
        return AtDeallocation(end, *arguments)
    end(*arguments)
    return None
