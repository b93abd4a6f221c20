"""The pool against a simple model of its accounting, with a simulated allocator."""

from __future__ import annotations

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import OutOfMemory
from lbrx.memory.pool import RESERVED, SMALLEST, Pool, size_class

LIMIT = 1 << 20


class Allocator:
    """Blocks are integers, and `capacity` is the memory in bytes."""

    def __init__(self, capacity: int = LIMIT) -> None:
        self.capacity = capacity
        self.live: dict[int, int] = {}
        self.made = 0

    def allocate(self, length: int) -> int | None:
        if sum(self.live.values()) + length > self.capacity:
            return None
        self.made += 1
        self.live[self.made] = length
        return self.made

    def free(self, block: int) -> None:
        del self.live[block]


@given(st.integers(0, 1 << 40))
def test_size_classes(size):
    length = size_class(size)
    assert length >= max(size, SMALLEST)
    assert length % SMALLEST == 0
    assert length - size <= max(SMALLEST, length / 8)
    assert size_class(length) == length


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, LIMIT // 3)),
        st.tuples(st.just("give"), st.integers(0, 1 << 30)),
        st.tuples(st.just("trim"), st.integers(0, LIMIT)),
    ),
    max_size=60,
)


class Model:
    """A pool and its expected statistics."""

    def __init__(self, capacity: int) -> None:
        self.allocator = Allocator(capacity)
        self.pool: Pool[int] = Pool(self.allocator.allocate, self.allocator.free, LIMIT)
        self.held: list[tuple[int, int, str]] = []
        self.high = 0

    def in_use(self) -> int:
        return sum(length for _, length, _ in self.held)

    def take(self, size: int) -> None:
        label = f"label {size % 3}"
        length = size_class(size)
        # All cached blocks are freed before a request fails.
        if self.in_use() + length > min(LIMIT, self.allocator.capacity):
            if not self._cached_for(length):
                self._refused(size)
            return
        block, got = self.pool.take(size, label)
        assert block not in {b for b, _, _ in self.held}
        assert length <= got < 2 * length
        assert self.allocator.live[block] == got
        self.held.append((block, got, label))

    def _cached_for(self, length: int) -> bool:
        held = {block for block, _, _ in self.held}
        return any(
            length <= size < 2 * length
            for block, size in self.allocator.live.items()
            if block not in held
        )

    def _refused(self, size: int) -> None:
        with pytest.raises(OutOfMemory) as caught:
            self.pool.take(size)
        problem = caught.value
        assert (problem.requested, problem.limit) == (size, LIMIT)
        assert problem.in_use == self.in_use() == sum(held for _, held in problem.holders)

    def check(self) -> None:
        books = self.pool.statistics()
        self.high = max(self.high, books.in_use)
        assert books.in_use == self.in_use()
        assert books.in_use + books.cached == sum(self.allocator.live.values()) <= LIMIT
        assert books.high_water == self.high
        assert books.cached <= LIMIT // 4
        assert books.in_use + books.cached <= RESERVED * self.high
        assert books.high_water <= books.reserved_high_water <= RESERVED * self.high


@given(STEPS, st.integers(LIMIT // 4, 2 * LIMIT))
def test_statistics_follow_the_model(steps, capacity):
    model = Model(capacity)
    for action, number in steps:
        if action == "take":
            model.take(number)
        elif action == "give" and model.held:
            model.pool.give(*model.held.pop(number % len(model.held)))
        elif action == "trim":
            model.pool.trim(number)
            assert model.pool.statistics().cached <= number
        model.check()
    for entry in model.held:
        model.pool.give(*entry)
    model.pool.trim()
    assert not model.allocator.live
    assert model.pool.holders() == []


def test_a_cached_block_serves_requests_of_over_half_its_size():
    allocator = Allocator()
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    pool.give(*pool.take(64 << 10))
    block, length = pool.take(40 << 10)
    assert (block, length) == (1, 64 << 10)
    pool.give(block, length)
    assert pool.take(32 << 10) == (2, 32 << 10)
    assert (pool.statistics().hits, pool.statistics().misses) == (1, 2)


def test_a_refused_block_stays_cached():
    allocator = Allocator()
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    first, second, third = (pool.take(1000) for _ in range(3))
    for each in (first, second, third):
        pool.give(*each)
    assert pool.take(1000, accept=lambda block: block == first[0]) == first
    assert pool.take(1000, accept=lambda block: False)[0] == 4
    books = pool.statistics()
    assert books.cached == second[1] + third[1]  # both are still in use by the device
    assert books.high_water == books.reserved_high_water == 4 * first[1]


def test_a_refused_block_serves_later_requests():
    allocator = Allocator()
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    busy = pool.take(4000)
    pool.give(*busy)
    other = pool.take(4000, accept=lambda block: block != busy[0])
    assert pool.take(3600) == busy
    pool.give(*busy)
    pool.give(*other)
    pool.take(20000)  # which no cached block serves, and none is refused: the bound holds again
    books = pool.statistics()
    assert books.in_use + books.cached <= RESERVED * books.high_water


def test_what_was_not_used_for_the_longest_time_is_freed():
    allocator = Allocator()
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    old, new, large = pool.take(1000), pool.take(3000), pool.take(20000)
    for each in (large, old, new):
        pool.give(*each)
    pool.take(50000)
    assert pool.statistics().cached == old[1] + new[1]


def test_memory_comes_back_before_a_request_fails():
    allocator = Allocator()
    held: list[tuple[int, int]] = []

    def reclaim() -> None:
        while held:
            pool.give(*held.pop())

    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT, reclaim)
    held.append(pool.take(LIMIT // 2))
    held.append(pool.take(LIMIT // 2))
    assert pool.take(LIMIT)[1] == LIMIT


def test_heaps_count_against_the_limit():
    allocator = Allocator(2 * LIMIT)
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    pool.give(*pool.take(LIMIT // 4))
    assert pool.statistics().cached == LIMIT // 4
    heap = 3 * LIMIT // 4 + 1
    assert pool.claim(heap)
    assert pool.statistics().cached == 0
    assert not pool.claim(LIMIT // 2)
    pool.occupy(LIMIT // 2, "weights")
    books = pool.statistics()
    assert (books.in_use, books.heaps_idle) == (LIMIT // 2, heap - LIMIT // 2)
    with pytest.raises(OutOfMemory, match=r"weights 524,288"):
        pool.take(LIMIT // 2)
    pool.vacate(LIMIT // 2, "weights")
    pool.disclaim(heap)
    assert pool.take(LIMIT // 2)[1] == LIMIT // 2
    assert pool.statistics().heaps_idle == 0


def test_many_threads():
    allocator = Allocator(1 << 30)
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, 1 << 30)
    taken: set[int] = set()
    clashes = []

    def work(seed: int) -> None:
        for i in range(500):
            block, length = pool.take((seed * 7919 + i * 104729) % 100_000)
            if block in taken:
                clashes.append(block)
            taken.add(block)
            taken.discard(block)
            pool.give(block, length)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    assert pool.statistics().in_use == 0
    assert pool.statistics().hits + pool.statistics().misses == 4000


def test_a_block_survives_the_cycle_that_held_it():
    """The collector finalises every object of a cycle, so the pool must hold the block too."""

    class Memory:
        gone = False

        def __del__(self):
            self.gone = True

    pool = Pool(lambda _: Memory(), lambda _: None, LIMIT)

    class Owner:
        def __init__(self):
            self.block, self.length = pool.take(1000)
            self.itself = self

        def __del__(self):
            pool.give(self.block, self.length)

    Owner()
    gc.collect()
    block, _ = pool.take(1000)
    assert not block.gone
    assert pool.statistics().hits == 1


@pytest.mark.parametrize("label", ["before", "other"])
def test_a_block_that_was_just_returned_serves_the_next_request(label):
    allocator = Allocator()
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    block, length = pool.take(1000, "before")
    pool.give(block, length, "before")
    assert pool.take(900, label) == (block, length)  # nobody has asked for statistics in between
    books = pool.statistics()
    assert (books.in_use, books.cached, books.high_water) == (1024, 0, 1024)
    assert (books.hits, books.misses) == (1, 1)
    assert pool.holders() == [(label, 1024)]
    pool.give(block, length, label)
    assert pool.statistics().in_use == 0
    assert pool.trim() == 1024
