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
HEAP_PART = 8  # of all shared heaps, that one more may be


class Heap(Generic[H]):
    """A heap of the device, and the claim to its length, which ends with the heap."""

    __slots__ = ("__weakref__", "_claim", "handle", "length")

    def __init__(self, handle: H, length: int, claim: object) -> None:
        self.handle = handle
        self.length = length
        self._claim = claim


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
                heap_of_its_own = self._create(size)
                return None if heap_of_its_own is None else self._place(heap_of_its_own, size)
            for heap in self._shared:
                if (block := self._place(heap, size)) is not None:
                    return block
            # Each new heap is a part of what is shared, so that little of it is idle.
            total = sum(heap.length for heap in self._shared)
            length = min(max(total // HEAP_PART, self._first_bytes), self._heap_bytes)
            new_heap = self._create(max(size, length))
            if new_heap is None and size < length:
                new_heap = self._create(size)
            if new_heap is None:
                return None
            self._shared.append(new_heap)
            return self._place(new_heap, size)

    def trim(self) -> None:
        """Free the shared heaps without blocks."""
        with self._lock:
            self._shared = [heap for heap in self._shared if self._used(heap)]
