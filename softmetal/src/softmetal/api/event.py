"""MTLFence, MTLEvent, MTLSharedEvent and its listener."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Self

from softmetal.api.libdispatch import DispatchQueue
from softmetal.api.objects import Allocated, Labelled
from softmetal.lifetime import AtDeallocation
from softmetal.validation import check_event_value, check_signal

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice

log = logging.getLogger("softmetal")

# A wait in the executor cannot be interrupted: long waits are split, so that Ctrl-C works.
SLICE = 0.05

SharedEventBlock = Callable[["MTLSharedEvent", int], object]


class MTLFence(Labelled):
    """Orders encoders of one queue. They run in order anyway; the checking modes use it."""

    __slots__ = ("_device", "_updated")

    def __init__(self, device: MTLDevice) -> None:
        super().__init__()
        self._device = device
        self._updated = False  # whether any encoder has updated it

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device


class MTLEvent(Labelled):
    """A counter that command buffers signal and wait for."""

    __slots__ = ("__weakref__", "_device", "_end", "_executor", "_handle")

    def __init__(self, device: MTLDevice) -> None:
        super().__init__()
        self._device = device
        self._executor = device._executor
        self._handle = self._executor.new_event()
        self._end = AtDeallocation(self._executor.free_event, self._handle)

    def _reached(self) -> int:
        return self._executor.event_value(self._handle)

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device


class MTLSharedEvent(MTLEvent):
    """An event that the host can read, signal, wait for and listen to."""

    __slots__ = ("_listener", "_lock", "_pending", "_serial")

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._lock = threading.Lock()
        self._pending: list[tuple[int, int, MTLSharedEventListener, SharedEventBlock]] = []
        self._serial = 0  # keeps blocks for the same value in their order
        self._listener: threading.Thread | None = None

    # MTL: -signaledValue
    def signaledValue(self) -> int:
        return self._reached()

    # MTL: -setSignaledValue:
    # DEVIATION: decreasing the value of a shared event from the host is an error.
    def setSignaledValue_(self, value: int) -> None:
        check_signal(value, self._reached())
        self._executor.signal_event(self._handle, value)

    # MTL: -waitUntilSignaledValue:timeoutMS:
    def waitUntilSignaledValue_timeoutMS_(self, value: int, milliseconds: int) -> bool:
        check_event_value(value)
        deadline = time.monotonic() + milliseconds / 1000
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._executor.wait_event(self._handle, value, min(left, SLICE)):
                return True
            if left == 0:
                return False

    # MTL: -notifyListener:atValue:block:
    def notifyListener_atValue_block_(
        self, listener: MTLSharedEventListener, value: int, block: SharedEventBlock
    ) -> None:
        """Call block(event, value) once the event has reached `value`."""
        check_event_value(value)
        with self._lock:
            self._serial += 1
            heappush(self._pending, (value, self._serial, listener, block))
            # It has ended too if the collector has found this event in a dead cycle, of which
            # another object has kept it.
            if self._listener is None or not self._listener.is_alive():
                self._listener = threading.Thread(
                    target=_listen, args=(weakref.ref(self),), daemon=True
                )
                self._listener.start()

    def _notify_next(self) -> bool:
        """Wait a moment for the lowest value; False when nothing is left to wait for."""
        with self._lock:
            if not self._pending:
                self._listener = None
                return False
            value = self._pending[0][0]
        if not self._executor.wait_event(self._handle, value, SLICE):
            return True
        with self._lock:
            value, _, listener, block = heappop(self._pending)
        try:
            listener.dispatchQueue().run(lambda: block(self, value))
        except Exception:
            log.exception("a shared event's notification block failed")
        return True

    # MTL: -newSharedEventHandle
    def newSharedEventHandle(self) -> MTLSharedEventHandle:
        return MTLSharedEventHandle(self)


def _listen(reference: weakref.ref[MTLSharedEvent]) -> None:
    while True:
        event = reference()  # referenced only during a slice, so that an unused event can be freed
        if event is None or not event._notify_next():
            return
        del event


class MTLSharedEventHandle(Labelled):
    """Identifies a shared event."""

    __slots__ = ("_event",)

    # DEVIATION: the handle of a shared event is valid within its process only.
    def __init__(self, event: MTLSharedEvent) -> None:
        super().__init__()
        self._event = event
        self._label = event.label()


class MTLSharedEventListener(Allocated):
    """The dispatch queue on which notification blocks run."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue = DispatchQueue("softmetal.shared-event-listener", serial=True)

    # MTL: -initWithDispatchQueue:
    def initWithDispatchQueue_(self, queue: DispatchQueue | None) -> Self:
        if queue is not None:
            self._queue = queue
        return self

    # MTL: +sharedListener
    @classmethod
    def sharedListener(cls) -> MTLSharedEventListener:
        return _SHARED_LISTENER

    # MTL: -dispatchQueue
    def dispatchQueue(self) -> DispatchQueue:
        return self._queue


_SHARED_LISTENER = MTLSharedEventListener()
