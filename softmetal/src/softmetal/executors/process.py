"""What executors share about their process and about waiting in C."""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from softmetal.errors import ExecutionError

SLICE_NS = 50_000_000  # the longest wait in C: Python handles Ctrl-C between two


class Process:
    """Events after which the threads of executors cannot be used."""

    forked = False
    exiting = False

    @classmethod
    def owns_nothing(cls) -> bool:
        """Whether to give nothing back: a kernel may still use it while the process exits, and in a
        forked child threads that are gone may hold the locks."""
        return cls.exiting or cls.forked


def _after_fork() -> None:
    Process.forked = True


def _at_exit() -> None:
    Process.exiting = True


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def refuse_fork() -> None:
    if Process.forked:
        raise ExecutionError(
            "softmetal's threads do not survive a fork: create the device in the child, "
            "in a process started by the 'spawn' method"
        )


def wait_in_slices(
    attempt: ctypes._NamedFuncPointer, subject: tuple[Any, ...], timeout: float | None
) -> bool:
    """Repeat `attempt`, which takes nanoseconds to wait, until it succeeds or `timeout` ends."""
    if Process.forked:
        refuse_fork()
    if timeout is None:
        while not attempt(*subject, SLICE_NS):
            _refuse_exit()
        return True
    rest = int(max(timeout, 0) * 1e9)
    deadline = time.monotonic_ns() + rest
    while not attempt(*subject, min(rest, SLICE_NS)):
        if (rest := deadline - time.monotonic_ns()) <= 0:
            return False
        _refuse_exit()
    return True


def _refuse_exit() -> None:
    if Process.exiting:
        raise ExecutionError("the process is exiting: its command queues have stopped")


class Tickets:
    """Submissions that were not forgotten, and the objects that each needs until it is done."""

    def __init__(self, done: Callable[[int], bool], forget: Callable[[int], None]) -> None:
        self._done = done
        self._forget = forget
        self._lock = Lock()
        self._needed: dict[int, tuple[object, ...]] = {}
        self._abandoned: dict[int, tuple[object, ...]] = {}  # forgotten before they were done

    def add(self, ticket: int, needed: tuple[object, ...]) -> None:
        self._needed[ticket] = needed

    def require(self, ticket: int) -> None:
        if ticket not in self._needed:
            raise ExecutionError(f"ticket {ticket} is unknown or was forgotten")

    def forget(self, ticket: int) -> None:
        needed = self._needed.pop(ticket, None)
        if needed is None:
            self.require(ticket)
        if needed and not self._done(ticket):
            self._abandoned[ticket] = needed
        else:
            self._forget(ticket)

    def collect(self) -> None:
        """Release what was abandoned and is done by now."""
        if not self._abandoned:
            return
        with self._lock:
            for ticket in list(self._abandoned):
                if self._done(ticket):
                    del self._abandoned[ticket]
                    self._forget(ticket)
