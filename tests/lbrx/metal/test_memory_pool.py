"""The pool against a model of its books, with an allocator that is a set."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lbrx.errors import OutOfMemory
from lbrx.memory.pool import SMALLEST, Pool, size_class

LIMIT = 1 << 20


class Allocator:
    """Blocks are numbers; `capacity` bytes exist."""

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


@given(STEPS, st.integers(LIMIT // 4, 2 * LIMIT))
def test_the_books_are_right(steps, capacity):
    allocator = Allocator(capacity)
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    held: list[tuple[int, int, str]] = []
    high = 0
    for action, number in steps:
        if action == "take":
            label = f"label {number % 3}"
            in_use = sum(length for _, length, _ in held)
            try:
                block, length = pool.take(number, label)
            except OutOfMemory as problem:
                # Nothing is cached any more that could have made room.
                assert in_use + size_class(number) > min(LIMIT, capacity)
                assert (problem.requested, problem.in_use, problem.limit) == (number, in_use, LIMIT)
                assert sum(size for _, size in problem.holders) == in_use
                continue
            assert block not in {b for b, _, _ in held}
            assert size_class(number) <= length < 2 * size_class(number)
            assert allocator.live[block] == length
            held.append((block, length, label))
        elif action == "give" and held:
            pool.give(*held.pop(number % len(held)))
        elif action == "trim":
            pool.trim(number)
            assert pool.statistics().cached <= number
        statistics = pool.statistics()
        high = max(high, statistics.in_use)
        assert statistics.in_use == sum(length for _, length, _ in held)
        assert statistics.in_use + statistics.cached == sum(allocator.live.values()) <= LIMIT
        assert statistics.high_water == high
    for entry in held:
        pool.give(*entry)
    pool.trim()
    assert not allocator.live
    assert pool.holders() == []


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
    first, second = pool.take(1000), pool.take(1000)
    pool.give(*first)
    pool.give(*second)
    assert pool.take(1000, accept=lambda block: block == first[0]) == first
    assert pool.take(1000, accept=lambda block: False)[0] == 3
    assert pool.statistics().cached == second[1]


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


def test_what_others_allocate_counts():
    allocator = Allocator(2 * LIMIT)
    pool: Pool[int] = Pool(allocator.allocate, allocator.free, LIMIT)
    pool.give(*pool.take(LIMIT // 2))
    assert pool.claim(3 * LIMIT // 4, "heaps")
    assert pool.statistics().cached == 0
    assert not pool.claim(LIMIT // 2, "heaps")
    with pytest.raises(OutOfMemory, match=r"heaps 786,432"):
        pool.take(LIMIT // 2)
    pool.disclaim(3 * LIMIT // 4, "heaps")
    assert pool.take(LIMIT // 2)[1] == LIMIT // 2


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
