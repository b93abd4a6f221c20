"""Long-lived memory cut from large heaps: few allocations for a model of many tensors.

Like the pool it knows no device. A heap finds its own place for a block and takes it back when
the block is gone, as automatic MTLHeaps do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")

HEAP_BYTES = 64 << 20


class Heaps(Generic[H, T]):
    """`create(length)` makes a heap, `place(heap, size)` a block in it, both None when full;
    `used(heap)` says how many bytes of it blocks have."""

    def __init__(
        self,
        create: Callable[[int], H | None],
        place: Callable[[H, int], T | None],
        used: Callable[[H], int],
        heap_bytes: int = HEAP_BYTES,
    ) -> None:
        self._create = create
        self._place = place
        self._used = used
        self._heap_bytes = heap_bytes
        self._heaps: list[tuple[H, int]] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> T | None:
        """A block in the first heap with room, in a new one if none has; None without memory."""
        with self._lock:
            for heap, _ in self._heaps:
                if (block := self._place(heap, size)) is not None:
                    return block
            length = max(size, self._heap_bytes)
            made = self._create(length)
            if made is None:
                return None
            self._heaps.append((made, length))
            return self._place(made, size)

    def trim(self) -> int:
        """Let go of heaps in which nothing is left; returns their bytes."""
        with self._lock:
            empty = [(heap, length) for heap, length in self._heaps if self._used(heap) == 0]
            self._heaps = [entry for entry in self._heaps if entry not in empty]
            return sum(length for _, length in empty)

    def bytes_reserved(self) -> int:
        with self._lock:
            return sum(length for _, length in self._heaps)
