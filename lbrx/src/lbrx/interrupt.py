"""Ctrl-C: delayed while a command list is being written, and quiet while `python -m lbrx` imports.

`lbrx/__init__.py` imports this module before all others.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has no stub
import signal
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from threading import get_ident
from types import FrameType
from typing import Any

# What `signal` calls, without its search for each handler in an enumeration, which takes several
# microseconds.
_get_handler, _set_handler = _signal.getsignal, _signal.signal

_SIGINT = int(signal.SIGINT)  # an enumeration is slower
_MAIN = threading.main_thread().ident  # the thread in which Python handles signals


_found = _get_handler(signal.SIGINT)
_quiet = sys.argv[:1] == ["-m"] and ("-m", "lbrx") in pairwise(sys.orig_argv)
if _quiet and _found is signal.default_int_handler and get_ident() == _MAIN:
    # Nothing of lbrx can catch KeyboardInterrupt before `lbrx.__main__` runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt after the imports of `python -m lbrx`."""
    if _quiet and _get_handler(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, _found)


class _Deferral:
    """`with UNINTERRUPTED:` delays KeyboardInterrupt until the outermost block ends.

    An exception within encoding would leave a command list that can never be completed. Code that
    waits for the device is not in such a block, so Ctrl-C ends a wait at once.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if get_ident() != _MAIN:
            return
        if self._depth == 0:
            handler = _get_handler(_SIGINT)
            # SIG_IGN and SIG_DFL are not callable: there is no exception to delay.
            if callable(handler):
                self._handler, self._came = handler, []
                _set_handler(_SIGINT, self._note)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if get_ident() != _MAIN:
            return
        self._depth -= 1
        if self._depth == 0 and self._handler is not None:
            handler, self._handler = self._handler, None
            _set_handler(_SIGINT, handler)
            if self._came:
                handler(*self._came[0])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))


UNINTERRUPTED = _Deferral()
