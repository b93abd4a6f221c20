"""A pool of memory blocks that knows no device: it is given callbacks.

A block that comes back is kept for the next request of about its size. Blocks come back at any
moment on any thread, as the collector pleases, so giving back takes no lock: it leaves a note,
and the next call that holds the lock reads it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lbrx.errors import OutOfMemory

T = TypeVar("T", bound=Hashable)

SMALLEST = 256  # more than any type asks for
STEPS = 8  # classes in a doubling: at most an eighth of a block is waste
CACHED_PART = 4  # of the limit may lie idle: the machine is not ours alone
HOLDERS = 5  # how many an error names


def size_class(size: int) -> int:
    """The block length that serves `size` bytes: one of eight in every doubling."""
    if size <= SMALLEST:
        return SMALLEST
    step = max(SMALLEST, 1 << ((size - 1).bit_length() - STEPS.bit_length()))
    return -(-size // step) * step


@dataclass(frozen=True)
class PoolStatistics:
    """Bytes, and counts of requests."""

    in_use: int
    cached: int
    high_water: int  # the most that was ever in use
    limit: int
    hits: int  # served from the cache
    misses: int  # served by the allocator


class Pool(Generic[T]):
    """Blocks by size class.

    `allocate(length)` returns a block, or None if there is no memory; `free` gives one back for
    good; `reclaim` is called before a request fails, and may make other memory come back.
    """

    def __init__(
        self,
        allocate: Callable[[int], T | None],
        free: Callable[[T], None],
        limit: int,
        reclaim: Callable[[], None] = lambda: None,
    ) -> None:
        self._allocate = allocate
        self._free = free
        self._reclaim = reclaim
        self.limit = limit
        self.cache_limit = limit // CACHED_PART
        self._lock = threading.Lock()
        self._returned: deque[tuple[T, int, str]] = deque()
        self._cache: dict[int, list[T]] = {}  # length -> blocks of it, the newest last
        self._held: Counter[str] = Counter()  # label -> bytes in use
        # Blocks in use. The collector finalises all of a dead cycle before anything in it is freed:
        # a block that only the cycle knew would come back with its memory already gone.
        self._taken: set[T] = set()
        self._in_use = self._cached = self._high_water = 0
        self._hits = self._misses = 0

    def take(
        self, size: int, label: str = "buffers", accept: Callable[[T], bool] | None = None
    ) -> tuple[T, int]:
        """A block of at least `size` bytes, and its length; `accept` refuses cached ones."""
        length = size_class(size)
        with self._lock:
            if self._returned:
                self._collect()
            found = self._cached_block(length, accept)
            if found is not None:
                self._hits += 1
                self._cached -= found[1]
            else:
                self._misses += 1
                block = self._fresh(length)
                found = (block, length) if block is not None else None
            if found is not None:
                self._taken.add(found[0])
                self._count(found[1], label)
                return found
        return self._last_resort(size, length, label), length

    def give(self, block: T, length: int, label: str = "buffers") -> None:
        """Take back what `take` returned, with the same label."""
        self._returned.append((block, length, label))

    def claim(self, length: int, label: str) -> bool:
        """Count memory that somebody else is about to allocate; False if it is too much."""
        with self._lock:
            self._collect()
            room = self.limit - self._in_use - length
            if room < 0:
                return False
            self._shrink(room)
            self._count(length, label)
            return True

    def disclaim(self, length: int, label: str) -> None:
        """Stop counting what was claimed."""
        with self._lock:
            self._in_use -= length
            self._held[label] -= length

    def trim(self, keep: int = 0) -> int:
        """Free cached blocks until at most `keep` bytes are cached; returns the bytes freed."""
        with self._lock:
            self._collect()
            return self._shrink(keep)

    def statistics(self) -> PoolStatistics:
        with self._lock:
            self._collect()
            return PoolStatistics(
                self._in_use,
                self._cached,
                self._high_water,
                self.limit,
                self._hits,
                self._misses,
            )

    def holders(self) -> list[tuple[str, int]]:
        """Bytes in use by label, the most first."""
        with self._lock:
            self._collect()
            return [(label, held) for label, held in self._held.most_common(HOLDERS) if held]

    def out_of_memory(self, size: int) -> OutOfMemory:
        """The error of a request that cannot be met."""
        return OutOfMemory(size, self.statistics().in_use, self.limit, self.holders())

    # ---- with the lock held ----

    def _count(self, length: int, label: str) -> None:
        self._in_use += length
        self._held[label] += length
        if self._in_use > self._high_water:
            self._high_water = self._in_use

    def _collect(self) -> None:
        returned, cache = self._returned, self._cache
        while returned:
            block, length, label = returned.popleft()
            self._taken.discard(block)
            self._in_use -= length
            self._held[label] -= length
            self._cached += length
            if length in cache:
                cache[length].append(block)
            else:
                cache[length] = [block]
        if self._cached > self.cache_limit:
            self._shrink(self.cache_limit)

    def _cached_block(
        self, length: int, accept: Callable[[T], bool] | None
    ) -> tuple[T, int] | None:
        """Of the same class, else of a larger one that is under twice the length."""
        if not self._cached:
            return None
        candidate = length
        while candidate < 2 * length:
            if blocks := self._cache.get(candidate):
                if accept is None:
                    return blocks.pop(), candidate
                for position in range(len(blocks) - 1, -1, -1):
                    if accept(blocks[position]):
                        return blocks.pop(position), candidate
            candidate = size_class(candidate + 1)
        return None

    def _fresh(self, length: int) -> T | None:
        """A new block, cached ones freed to stay below the limit, or all of them to get it."""
        room = self.limit - self._in_use - length
        if room < 0:
            return None
        if self._cached > room:
            self._shrink(room)
        block = self._allocate(length)
        if block is None and self._cached:
            self._shrink(0)
            block = self._allocate(length)
        return block

    def _shrink(self, keep: int) -> int:
        """Free the largest first, which takes the fewest calls; of a length the oldest."""
        before = self._cached
        for length in sorted(self._cache, reverse=True):
            blocks = self._cache[length]
            while blocks and self._cached > keep:
                self._free(blocks.pop(0))
                self._cached -= length
            if self._cached <= keep:
                break
        return before - self._cached

    # ---- without it ----

    def _last_resort(self, size: int, length: int, label: str) -> T:
        """Let others give memory back, then try once more."""
        self._reclaim()
        with self._lock:
            self._collect()
            block = self._fresh(length)
            if block is not None:
                self._taken.add(block)
                self._count(length, label)
                return block
        raise self.out_of_memory(size)
