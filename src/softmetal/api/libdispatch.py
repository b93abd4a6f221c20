"""The few names of PyObjC's libdispatch that Metal programs use: data and queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from softmetal.api.foundation import NSData
from softmetal.api.objects import Object

DISPATCH_QUEUE_SERIAL = None
DISPATCH_QUEUE_CONCURRENT = "concurrent"
DISPATCH_QUEUE_PRIORITY_DEFAULT = 0
DISPATCH_QUEUE_PRIORITY_HIGH = 2
DISPATCH_QUEUE_PRIORITY_LOW = -2
DISPATCH_DATA_DESTRUCTOR_DEFAULT = None


class DispatchQueue(Object):
    """Blocks of a serial queue run one at a time; those of a concurrent queue at once."""

    __slots__ = ("_turn", "label")

    def __init__(self, label: str | bytes, *, serial: bool) -> None:
        self.label = label
        self._turn: AbstractContextManager[Any] = threading.RLock() if serial else nullcontext()

    def run(self, block: Callable[[], object]) -> None:
        """Run a block on the calling thread, when it is its turn."""
        with self._turn:
            block()


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


def dispatch_get_main_queue() -> DispatchQueue:
    return _MAIN


def dispatch_sync(queue: DispatchQueue, block: Callable[[], object]) -> None:
    queue.run(block)


# DEVIATION: blocks of `dispatch_async` each get a thread, so those of a serial queue run one at a
# time but not always in the order in which they were given.
def dispatch_async(queue: DispatchQueue, block: Callable[[], object]) -> None:
    threading.Thread(target=queue.run, args=(block,), daemon=True).start()
