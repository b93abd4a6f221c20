"""The part of PyObjC's libdispatch that Metal programs use: data, queues, semaphores, groups,
time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from softmetal.api.foundation import NSData
from softmetal.api.objects import Object

log = logging.getLogger(__name__)

DISPATCH_QUEUE_SERIAL = None
DISPATCH_QUEUE_CONCURRENT = "concurrent"
DISPATCH_QUEUE_PRIORITY_DEFAULT = 0
DISPATCH_QUEUE_PRIORITY_HIGH = 2
DISPATCH_QUEUE_PRIORITY_LOW = -2
DISPATCH_QUEUE_PRIORITY_BACKGROUND = -(1 << 15)
DISPATCH_DATA_DESTRUCTOR_DEFAULT = None
DISPATCH_TIME_NOW = 0
DISPATCH_TIME_FOREVER = (1 << 64) - 1
NSEC_PER_SEC = 1_000_000_000
NSEC_PER_MSEC = 1_000_000
NSEC_PER_USEC = 1_000
_TIMED_OUT = 49  # what libdispatch returns

DispatchBlock = Callable[[], object]


class DispatchQueue(Object):
    """Blocks of a serial queue run one at a time in order; those of a concurrent queue at once."""

    __slots__ = ("_blocks", "_draining", "_lock", "_owner", "_serial", "label")

    def __init__(self, label: str | bytes, *, serial: bool) -> None:
        self.label = label
        self._serial = serial
        self._lock = threading.Lock()
        self._blocks: deque[DispatchBlock] = deque()
        self._draining = False
        self._owner = 0  # the thread that runs a block now

    def start(self, block: DispatchBlock) -> None:
        """Run a block on a thread of the queue."""
        with self._lock:
            self._blocks.append(block)
            if self._serial and self._draining:
                return
            self._draining = True
        threading.Thread(target=self._drain, daemon=True).start()

    def run(self, block: DispatchBlock) -> None:
        """Run a block on the calling thread, after the blocks before it."""
        if not self._serial or self._owner == threading.get_ident():
            block()
            return
        begin, end = threading.Event(), threading.Event()

        def turn() -> None:
            begin.set()
            end.wait()

        self.start(turn)
        begin.wait()
        self._owner = threading.get_ident()
        try:
            block()
        finally:
            end.set()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._blocks:
                    self._draining = False
                    return
                block = self._blocks.popleft()
            self._owner = threading.get_ident()
            try:
                block()
            except Exception:
                log.exception("a block of dispatch queue %s failed", self.label)
            self._owner = 0


_GLOBAL = DispatchQueue("com.apple.root.default-qos", serial=False)
_MAIN = DispatchQueue("com.apple.main-thread", serial=True)


def dispatch_data_create(
    buffer: Any, size: int, queue: DispatchQueue | None, destructor: Any
) -> NSData:
    return NSData.dataWithBytes_length_(buffer, size)


def dispatch_queue_create(label: str | bytes, attributes: Any) -> DispatchQueue:
    return DispatchQueue(label, serial=attributes is DISPATCH_QUEUE_SERIAL)


def dispatch_get_global_queue(identifier: int, flags: int) -> DispatchQueue:
    return _GLOBAL


# DEVIATION: blocks of the main queue run on a separate thread: there is no run loop.
def dispatch_get_main_queue() -> DispatchQueue:
    return _MAIN


def dispatch_sync(queue: DispatchQueue, block: DispatchBlock) -> None:
    queue.run(block)


def dispatch_async(queue: DispatchQueue, block: DispatchBlock) -> None:
    queue.start(block)


def dispatch_apply(iterations: int, queue: DispatchQueue, block: Callable[[int], object]) -> None:
    for index in range(iterations):
        block(index)


# ---- time ---------------------------------------------------------------------------------------


def dispatch_time(when: int, delta: int) -> int:
    """The moment `delta` nanoseconds after `when`."""
    if when == DISPATCH_TIME_FOREVER:
        return when
    return (when or time.monotonic_ns()) + delta


def dispatch_after(when: int, queue: DispatchQueue, block: DispatchBlock) -> None:
    timer = threading.Timer(_seconds_until(when) or 0.0, queue.start, (block,))
    timer.daemon = True
    timer.start()


def _seconds_until(when: int) -> float | None:
    """Seconds until a moment; None for DISPATCH_TIME_FOREVER."""
    if when == DISPATCH_TIME_FOREVER:
        return None
    return max(0.0, (when - time.monotonic_ns()) / NSEC_PER_SEC) if when else 0.0


# ---- semaphores and groups ----------------------------------------------------------------------


class DispatchSemaphore(Object):
    """A counting semaphore."""

    __slots__ = ("_changed", "_value", "_waiting")

    def __init__(self, value: int) -> None:
        self._value = value
        self._waiting = 0
        self._changed = threading.Condition()

    def wait(self, timeout: float | None) -> bool:
        with self._changed:
            self._waiting += 1
            try:
                taken = self._changed.wait_for(lambda: self._value > 0, timeout)
            finally:
                self._waiting -= 1
            self._value -= taken
            return taken

    def signal(self) -> bool:
        """Increment the count; True if a thread was waiting."""
        with self._changed:
            self._value += 1
            self._changed.notify()
            return self._waiting > 0


def dispatch_semaphore_create(value: int) -> DispatchSemaphore:
    return DispatchSemaphore(value)


def dispatch_semaphore_wait(semaphore: DispatchSemaphore, timeout: int) -> int:
    return 0 if semaphore.wait(_seconds_until(timeout)) else _TIMED_OUT


def dispatch_semaphore_signal(semaphore: DispatchSemaphore) -> int:
    return int(semaphore.signal())


class DispatchGroup(Object):
    """Counts unfinished work, and notifies when all of it is done."""

    __slots__ = ("_changed", "_count", "_notify")

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()
        self._notify: list[tuple[DispatchQueue, DispatchBlock]] = []

    def enter(self) -> None:
        with self._changed:
            self._count += 1

    def leave(self) -> None:
        with self._changed:
            self._count -= 1
            done = self._take_notifications()
            self._changed.notify_all()
        for queue, block in done:
            queue.start(block)

    def wait(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout)

    def notify(self, queue: DispatchQueue, block: DispatchBlock) -> None:
        with self._changed:
            self._notify.append((queue, block))
            done = self._take_notifications()
        for to, ready in done:
            to.start(ready)

    def _take_notifications(self) -> list[tuple[DispatchQueue, DispatchBlock]]:
        if self._count:
            return []
        done, self._notify = self._notify, []
        return done


def dispatch_group_create() -> DispatchGroup:
    return DispatchGroup()


def dispatch_group_enter(group: DispatchGroup) -> None:
    group.enter()


def dispatch_group_leave(group: DispatchGroup) -> None:
    group.leave()


def dispatch_group_wait(group: DispatchGroup, timeout: int) -> int:
    return 0 if group.wait(_seconds_until(timeout)) else _TIMED_OUT


def dispatch_group_notify(group: DispatchGroup, queue: DispatchQueue, block: DispatchBlock) -> None:
    group.notify(queue, block)


def dispatch_group_async(group: DispatchGroup, queue: DispatchQueue, block: DispatchBlock) -> None:
    def work() -> None:
        try:
            block()
        finally:
            group.leave()

    group.enter()
    queue.start(work)
