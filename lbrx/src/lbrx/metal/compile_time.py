"""How much is compiled, and in how much time: threads that compile side by side take it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class CompileCount:
    """How many kernels were compiled, and in how many seconds."""

    kernels: int = 0
    seconds: float = 0.0


class SharedTime:
    """The time in which at least one thread did something."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._threads = 0
        self._began = self._spent = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which this thread does it."""
        with self._lock:
            if not self._threads:
                self._began = self._clock()
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._spent += self._clock() - self._began

    @property
    def seconds(self) -> float:
        """The time so far."""
        with self._lock:
            return self._spent + (self._clock() - self._began if self._threads else 0.0)
