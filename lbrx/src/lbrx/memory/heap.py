"""Long-lived memory cut from heaps: few allocations for the many arrays of a model.

Like the pool, this knows no device: it is given callbacks. A heap chooses the place of a block and
reuses it when the block is gone, as automatic MTLHeaps do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")

HEAP_BYTES = 64 << 20  # the largest heap that blocks share
FIRST_HEAP_BYTES = 1 << 20


class Heap(Generic[H]):
    """A heap of the device, which calls `released(length)` when its last reference is gone."""

    __slots__ = ("__weakref__", "_released", "handle", "length")

    def __init__(self, handle: H, length: int, released: Callable[[int], None]) -> None:
        self.handle = handle
        self.length = length
        self._released = released

    # The collector may call this at any moment on any thread: `released` must not take a lock.
    def __del__(self) -> None:
        self._released(self.length)


class Heaps(Generic[H, T]):
    """`create(length)` makes a heap and `place(heap, size)` a block in it: both return None when
    memory is exhausted. A block must keep its heap alive. `used(heap)` is the number of bytes that
    blocks occupy."""

    def __init__(
        self,
        create: Callable[[int], Heap[H] | None],
        place: Callable[[Heap[H], int], T | None],
        used: Callable[[Heap[H]], int],
        heap_bytes: int = HEAP_BYTES,
        first_bytes: int = FIRST_HEAP_BYTES,
    ) -> None:
        self._create = create
        self._place = place
        self._used = used
        self._heap_bytes = heap_bytes
        self._first_bytes = first_bytes
        self._shared: list[Heap[H]] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> T | None:
        """A block in a shared heap, or None without memory. A block of `heap_bytes` or more gets a
        separate heap, which is freed with it."""
        with self._lock:
            if size >= self._heap_bytes:
                own = self._create(size)
                return None if own is None else self._place(own, size)
            for heap in self._shared:
                if (block := self._place(heap, size)) is not None:
                    return block
            # Each new heap doubles what is shared, so that small programs reserve little.
            total = sum(heap.length for heap in self._shared)
            length = min(max(total, self._first_bytes), self._heap_bytes)
            made = self._create(max(size, length))
            if made is None and size < length:
                made = self._create(size)
            if made is None:
                return None
            self._shared.append(made)
            return self._place(made, size)

    def trim(self) -> None:
        """Free the shared heaps without blocks."""
        with self._lock:
            self._shared = [heap for heap in self._shared if self._used(heap)]
