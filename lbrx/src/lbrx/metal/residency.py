"""Memory that stays resident: heaps and mapped files, which most work of a model uses.

Without it macOS may unwire the memory of a process that pauses, and each command buffer has to make
resident what it uses. Residency sets exist since macOS 15; before it nothing is done.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from lbrx.metal import binding
from lbrx.metal.binding import Metal


class Residency:
    """The residency set of a device's queue."""

    def __init__(self, device: Any, wanted: bool) -> None:
        self.members: Any = _new_set(device) if wanted else None
        self._lock = threading.Lock()
        # What is gone and still a member, with the owner of its memory. Sets are not for several
        # threads at once.
        self._leaving: deque[tuple[Any, object]] = deque()

    def join(self, allocation: Any, owner: object = None) -> object:
        """Make an MTLHeap or MTLBuffer a member for as long as the result exists. `owner` keeps its
        memory alive."""
        if self.members is None:
            return None
        with self._lock:
            self.members.addAllocation_(allocation)
            self._drop()
            self.members.commit()
            self.members.requestResidency()
        self._update()
        return binding.AtDeallocation(self._leave, (allocation, owner))

    def _leave(self, member: tuple[Any, object]) -> None:
        """Called at any moment on any thread, also on one that is within `join`."""
        self._leaving.append(member)
        self._update()

    def _update(self) -> None:
        """Let go of what is gone. Where another call holds the lock, that one does it."""
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                self._drop()
                self.members.commit()
            finally:
                self._lock.release()

    def _drop(self) -> None:
        while self._leaving:
            allocation, _ = self._leaving.popleft()
            self.members.removeAllocation_(allocation)


def _new_set(device: Any) -> Any:
    make = getattr(device, "newResidencySetWithDescriptor_error_", None)
    if make is None:
        return None
    descriptor = Metal.MTLResidencySetDescriptor.alloc().init()
    descriptor.setLabel_("lbrx")
    made, _ = make(descriptor, None)
    return made
