"""Heaps of a simulated device, and the pool that counts them."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.memory.heap import Heap, Heaps
from lbrx.memory.pool import Pool
from lbrx.metal.binding import AtDeallocation

LIMIT = 20_000


class Fake:
    """A device's heap: the sizes of its blocks."""

    def __init__(self) -> None:
        self.blocks: list[int] = []


class Block:
    """A part of a heap, which it keeps alive."""

    def __init__(self, heap: Heap[Fake], size: int) -> None:
        self.heap, self.size = heap, size
        heap.handle.blocks.append(size)

    def __del__(self) -> None:
        self.heap.handle.blocks.remove(self.size)


class Setup:
    def __init__(self, limit: int = LIMIT) -> None:
        self.made: list[int] = []
        self.pool: Pool[int] = Pool(lambda length: None, lambda block: None, limit)
        self.heaps: Heaps[Fake, Block] = Heaps(
            self.create, self.place, lambda heap: sum(heap.handle.blocks), 1000, 100
        )

    def create(self, length: int) -> Heap[Fake] | None:
        if not self.pool.claim(length):
            return None
        self.made.append(length)
        return Heap(Fake(), length, AtDeallocation(self.pool.disclaim, length))

    def place(self, heap: Heap[Fake], size: int) -> Block | None:
        return None if sum(heap.handle.blocks) + size > heap.length else Block(heap, size)

    def idle(self) -> int:
        return self.pool.statistics().heaps_idle


@pytest.mark.parametrize(
    ("sizes", "heaps"),
    [
        ([40, 40, 20], [100]),
        ([60, 60, 60, 30, 60], [100, 100, 100, 100]),
        ([300, 90, 10], [300, 100]),
        ([5000, 50, 5000], [5000, 100, 5000]),  # a large block has its own heap
        ([100] * 12, [*[100] * 9, 112, 126, 142]),  # each new heap is an eighth of the total
        ([0], [100]),
    ],
)
def test_blocks_share_heaps(sizes, heaps):
    setup = Setup()
    blocks = [setup.heaps.take(size) for size in sizes]
    assert [block.size for block in blocks] == sizes
    assert setup.made == heaps
    assert setup.idle() == sum(heaps)


def test_without_memory_the_result_is_none():
    setup = Setup(limit=150)
    assert setup.heaps.take(151) is None
    first = setup.heaps.take(100)
    assert setup.heaps.take(51) is None
    assert setup.heaps.take(40) is not None  # in a heap of 40, because 100 would exceed the limit
    assert (setup.made, first.size) == ([100, 40], 100)


def test_empty_heaps_are_freed():
    setup = Setup()
    first, second = setup.heaps.take(90), setup.heaps.take(90)
    del first
    assert setup.idle() == 200
    setup.heaps.trim()
    assert setup.idle() == 100
    setup.heaps.trim()
    assert second.heap.length == 100
    assert setup.idle() == 100


def test_the_heap_of_a_large_block_is_freed_with_it():
    setup = Setup()
    block = setup.heaps.take(5000)
    assert setup.idle() == 5000
    del block
    assert setup.idle() == 0


def test_a_heap_of_a_dead_cycle_is_freed_once():
    setup = Setup()

    class Owner:
        def __init__(self) -> None:
            self.block, self.itself = setup.heaps.take(5000), self

    Owner()
    gc.collect()
    assert setup.idle() == 0


@given(st.lists(st.tuples(st.sampled_from("take give trim".split()), st.integers(0, 3000))))
def test_the_pool_counts_heaps_and_blocks(steps):
    setup = Setup()
    held: list[Block] = []
    for action, number in steps:
        if action == "take":
            block = setup.heaps.take(number)
            if block is not None:
                held.append(block)
                setup.pool.occupy(number, "here")
        elif action == "give" and held:
            block = held.pop(number % len(held))
            setup.pool.vacate(block.size, "here")
        elif action == "trim":
            setup.heaps.trim()
        block = None
        books = setup.pool.statistics()
        lengths = {id(b.heap): b.heap.length for b in held}
        lengths.update((id(heap), heap.length) for heap in setup.heaps._shared)
        assert books.in_use == sum(b.size for b in held)
        assert books.in_use + books.heaps_idle == sum(lengths.values()) <= LIMIT
    for block in held:
        setup.pool.vacate(block.size, "here")
    block = None
    held.clear()
    setup.heaps.trim()
    books = setup.pool.statistics()
    assert (books.in_use, books.heaps_idle) == (0, 0)
