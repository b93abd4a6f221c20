"""Events between host and device."""

from __future__ import annotations

import threading
import time
from typing import Any

from lbrx.metal.command_queue import CommandQueue
from lbrx.metal.outcome import Outcome

# The signal of failed work never comes: wait in slices, and look at the queue between them.
SLICE_MS = 50


class DeviceEvent:
    """A point in the device's work that the host can wait for, or the device for the host.

    Each `record` sets a new point; `wait` and `query` are about the newest.

    >>> event = lbrx.metal.context().event()
    >>> event.record()
    >>> event.wait(timeout=60), event.query()
    (True, True)
    """

    def __init__(self, device: Any, queue: CommandQueue) -> None:
        self._event = device.newSharedEvent()
        self._queue = queue
        self._lock = threading.Lock()
        self._value = 0  # of the newest point
        self._ticket = 0
        self._outcome: Outcome | None = None

    def record(self) -> None:
        """Set the point after all work so far. The device reaches it asynchronously."""
        with self._lock:
            self._value += 1
            self._ticket, self._outcome = self._queue.signal(self._event, self._value)

    def query(self) -> bool:
        """Whether the device has reached the newest point."""
        return bool(self._event.signaledValue() >= self._value)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the device has reached the point; False after `timeout` seconds. Raises
        DeviceError if work failed that the recording thread encoded before it."""
        value, ticket, outcome = self._value, self._ticket, self._outcome
        deadline = None if timeout is None else time.monotonic() + timeout
        slice_ms = SLICE_MS if timeout is None else min(SLICE_MS, int(timeout * 1000))
        while not self._event.waitUntilSignaledValue_timeoutMS_(value, slice_ms):
            if ticket and ticket <= self._queue.completed():
                break
            if deadline is not None and time.monotonic() >= deadline:
                return False
        self._queue.wait_for(ticket, outcome)
        return True

    def hold(self) -> None:
        """Make the device wait, before any later work, until the host calls `release`."""
        with self._lock:
            self._value += 1
            self._ticket, self._outcome = 0, None
            self._queue.hold(self._event, self._value)

    def release(self) -> None:
        """Let the device continue after `hold`."""
        self._event.setSignaledValue_(self._value)
