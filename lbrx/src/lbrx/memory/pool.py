"""A pool of memory blocks that knows no device: it is given callbacks.

A returned block is kept for the next request of about its size. Python's garbage collector may
return blocks at any moment on any thread, so returning takes no lock: it appends to a queue that
the next call with the lock reads.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from lbrx.errors import OutOfMemory

T = TypeVar("T", bound=Hashable)

SMALLEST = 256  # bytes, which satisfies the alignment of every type
STEPS = 8  # size classes per doubling: at most an eighth of a block is wasted
CACHED_PART = 4  # a quarter of the limit may be cached: other programs need memory too
RESERVED = 19 / 16  # of the most that was in use: what is reserved with a new block, at most
HOLDERS = 5  # labels that an error lists


@lru_cache(4096)
def size_class(size: int) -> int:
    """The block length that serves `size` bytes: one of eight in every doubling."""
    if size <= SMALLEST:
        return SMALLEST
    step = max(SMALLEST, 1 << ((size - 1).bit_length() - STEPS.bit_length()))
    return -(-size // step) * step


@dataclass(frozen=True)
class PoolStatistics:
    """Bytes, and counts of requests."""

    in_use: int  # by buffers of the pool and of heaps
    cached: int  # free blocks of the pool
    heaps_idle: int  # of heaps, beside what buffers occupy
    high_water: int  # the largest in_use so far, with the blocks that a request refused meanwhile
    reserved_high_water: int  # the largest sum of the first three so far
    limit: int
    hits: int  # served from the cache
    misses: int  # served by the allocator


class Pool(Generic[T]):
    """Blocks by size class.

    `allocate(length)` returns a block, or None if there is no memory; `free` returns one to the
    system; `reclaim` is called before a request fails, and may free other memory.

    >>> from lbrx.memory.pool import Pool
    >>> pool = Pool(allocate=lambda length: object(), free=lambda block: None, limit=1 << 20)
    >>> block, length = pool.take(1000)
    >>> length  # of its size class
    1024
    >>> pool.give(block, length)
    >>> pool.take(900)[0] is block
    True
    >>> pool.statistics().hits
    1
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
        # Block, length and label of what was in use; without a block it was in a heap, and without
        # a label it is the heap itself.
        self._returned: deque[tuple[T | None, int, str | None]] = deque()
        # Free blocks by length, the newest last. The lengths that were used last come last.
        self._cache: dict[int, list[T]] = {}
        self._held: Counter[str] = Counter()  # label -> bytes in use
        # Blocks in use. The collector finalises every object of a dead cycle before it frees one:
        # a block that only the cycle referred to would be finalised before it is returned.
        self._taken: set[T] = set()
        self._in_use = self._cached = self._heaps_idle = 0
        self._high_water = self._reserved_high_water = 0
        self._hits = self._misses = 0

    def take(
        self, size: int, label: str = "buffers", accept: Callable[[T], bool] | None = None
    ) -> tuple[T, int]:
        """A block of at least `size` bytes, and its length. `accept` may refuse cached blocks,
        which pending work still uses: they count as in use for this request."""
        length = SMALLEST if size <= SMALLEST else size_class(size)
        with self._lock:
            if self._returned:
                if len(self._returned) == 1 and accept is None:
                    block, ticket, before = self._returned[0]
                    if block is not None and ticket == length and before == label:
                        self._returned.popleft()  # the same bytes stay in use
                        self._hits += 1
                        return block, length
                self._collect()
            exact = self._cache.get(length) if accept is None else None
            best: tuple[T, int] | None = None
            if exact:
                best = exact.pop(), length
            elif self._cached:
                best = self._cached_block(length, accept)
            if best is not None:
                self._hits += 1
                self._cached -= best[1]
            else:
                self._misses += 1
                block = self._fresh(length, self._refused(accept))
                best = (block, length) if block is not None else None
            if best is not None:
                self._taken.add(best[0])
                self._count(best[1], label)
                return best
        return self._last_resort(size, length, label), length

    def give(self, block: T, length: int, label: str = "buffers") -> None:
        """Take back what `take` returned, with the same label. Takes no lock."""
        self._returned.append((block, length, label))

    def claim(self, length: int) -> bool:
        """Count a heap that is about to be allocated; False if it would exceed the limit."""
        with self._lock:
            self._collect()
            room = self._room(length)
            if room < 0:
                return False
            self._shrink(min(room, self._spare(0)))
            self._heaps_idle += length
            self._note_reserved()
            return True

    def disclaim(self, length: int) -> None:
        """Stop counting a heap, in which nothing is in use any more. Takes no lock."""
        self._returned.append((None, length, None))

    def occupy(self, length: int, label: str) -> None:
        """Count a part of a claimed heap as in use."""
        with self._lock:
            self._collect()
            self._heaps_idle -= length
            self._count(length, label)

    def vacate(self, length: int, label: str) -> None:
        """The opposite of `occupy`. Takes no lock."""
        self._returned.append((None, length, label))

    def trim(self, keep: int = 0) -> int:
        """Free cached blocks until at most `keep` bytes are cached; returns the bytes freed."""
        with self._lock:
            self._collect()
            return self._shrink(keep)

    def statistics(self) -> PoolStatistics:
        """Bytes and counts as they are now."""
        with self._lock:
            self._collect()
            return PoolStatistics(
                in_use=self._in_use,
                cached=self._cached,
                heaps_idle=self._heaps_idle,
                high_water=self._high_water,
                reserved_high_water=self._reserved_high_water,
                limit=self.limit,
                hits=self._hits,
                misses=self._misses,
            )

    def holders(self) -> list[tuple[str, int]]:
        """Bytes in use by label, the most first."""
        with self._lock:
            self._collect()
            return [(label, held) for label, held in self._held.most_common(HOLDERS) if held]

    def out_of_memory(self, size: int) -> OutOfMemory:
        """The error of a request for `size` bytes."""
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
            if label is None:
                self._heaps_idle -= length
                continue
            self._in_use -= length
            self._held[label] -= length
            if block is None:
                self._heaps_idle += length
                continue
            self._taken.discard(block)
            self._cached += length
            blocks = cache.pop(length, [])
            blocks.append(block)
            cache[length] = blocks
        if self._cached > self.cache_limit:
            self._shrink(self.cache_limit)

    def _cached_block(
        self, length: int, accept: Callable[[T], bool] | None
    ) -> tuple[T, int] | None:
        """A block of the same size class, else of a larger one below twice the length."""
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

    def _refused(self, accept: Callable[[T], bool] | None) -> int:
        """The bytes of cached blocks that `accept` refuses. To free them would gain nothing before
        the work that uses them has ended."""
        if accept is None or not self._cached:
            return 0
        return sum(
            length * sum(not accept(block) for block in blocks)
            for length, blocks in self._cache.items()
        )

    def _fresh(self, length: int, refused: int = 0) -> T | None:
        """A new block. Cached ones are freed so that little more is reserved than was ever in use,
        and all if it still fails. `refused` bytes of those cached are in use."""
        room = self._room(length)
        if room < 0:
            return None
        room = min(room, refused + self._spare(length + refused))
        if self._cached > room:
            self._shrink(room)
        block = self._allocate(length)
        if block is None and self._cached:
            self._shrink(0)
            block = self._allocate(length)
        if block is not None:
            self._high_water = max(self._high_water, self._in_use + length + refused)
            self._note_reserved(length)
        return block

    def _spare(self, length: int) -> int:
        """The bytes that may stay cached beside `length` new ones in use."""
        used = self._in_use + length
        most = int(RESERVED * max(self._high_water, used))
        return max(most - used - self._heaps_idle, 0)

    def _note_reserved(self, length: int = 0) -> None:
        """`length` bytes of a new block are not counted elsewhere yet."""
        reserved = self._in_use + self._cached + self._heaps_idle + length
        self._reserved_high_water = max(self._reserved_high_water, reserved)

    def _room(self, length: int) -> int:
        """The bytes that may stay cached beside `length` new ones; negative above the limit."""
        return self.limit - self._in_use - self._heaps_idle - length

    def _shrink(self, keep: int) -> int:
        """Free blocks of the lengths first that were not used for the longest time, and of one
        length the oldest."""
        before = self._cached
        for length in list(self._cache):
            if self._cached <= keep:
                break
            blocks = self._cache[length]
            while blocks and self._cached > keep:
                self._free(blocks.pop(0))
                self._cached -= length
            if not blocks:
                del self._cache[length]
        return before - self._cached

    # ---- without the lock ----

    def _last_resort(self, size: int, length: int, label: str) -> T:
        """Free other memory, then try once more."""
        self._reclaim()
        with self._lock:
            self._collect()
            block = self._fresh(length)
            if block is not None:
                self._taken.add(block)
                self._count(length, label)
                return block
        raise self.out_of_memory(size)
