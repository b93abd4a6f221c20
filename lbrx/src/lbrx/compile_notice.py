"""One line on standard error where first uses of kernels compile for longer than a second.

Compilations that follow each other within some seconds are one stretch, and get one line together.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lbrx import env

AFTER = 1.0  # seconds of compiling before a stretch is worth a line
PAUSE = 10.0  # seconds without compiling that end a stretch

Cancel = Callable[[], object]


def _later(seconds: float, call: Callable[[], object]) -> Cancel:
    """Call a function on another thread, unless it is cancelled before."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer.cancel


def _print(text: str) -> None:
    if sys.stderr is not None:  # a program without a console has none
        print(f"lbrx: {text}", file=sys.stderr, flush=True)


class CompileNotice:
    """Knows what is being compiled, and tells it once in a stretch. Thread-safe."""

    def __init__(
        self,
        say: Callable[[str], object] = _print,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], object]], Cancel] = _later,
    ) -> None:
        self._say, self._clock, self._later = say, clock, later
        self._lock = threading.Lock()
        self._active: list[str] = []
        self._began = self._ended = -PAUSE
        self._spent = 0.0  # seconds of this stretch in which something was compiled
        self._said = False
        self._silent = 0
        self._cancel: Cancel | None = None

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """A context within which `what` is compiled."""
        wanted = env.compile_notice()
        with self._lock:
            self._active.append(what)
            if len(self._active) == 1:
                self._begin(wanted)
        try:
            yield
        finally:
            with self._lock:
                self._active.remove(what)
                if not self._active:
                    self._end()

    @contextmanager
    def silenced(self, silent: bool = True) -> Iterator[None]:
        """A context within which nothing is said, if `silent`."""
        with self._lock:
            self._silent += silent
        try:
            yield
        finally:
            with self._lock:
                self._silent -= silent

    def _begin(self, wanted: bool) -> None:
        self._began = self._clock()
        if self._began - self._ended >= PAUSE:
            self._spent, self._said = 0.0, False
        if wanted and not self._said and not self._silent:
            self._cancel = self._later(max(AFTER - self._spent, 0.0), self._tell)

    def _end(self) -> None:
        self._ended = self._clock()
        self._spent += self._ended - self._began
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _tell(self) -> None:
        with self._lock:
            if not self._active or self._said or self._silent:
                return
            self._said = True
            what = self._active[-1]
        self._say(
            f"compiling kernels for their first use, now {what}; `lbrx shaders build` compiles the "
            "usual ones ahead, LBRX_COMPILE_NOTICE=0 hides this line"
        )


_notice = CompileNotice()
compiling, silenced = _notice.compiling, _notice.silenced
