"""Heaps with lists in the place of a device's."""

from __future__ import annotations

from lbrx.memory.heap import Heaps


class Fake:
    def __init__(self, length: int) -> None:
        self.length = length
        self.blocks: list[int] = []


def make(limit: int = 1 << 30) -> tuple[Heaps[Fake, int], list[Fake]]:
    made: list[Fake] = []

    def create(length: int) -> Fake | None:
        if length > limit:
            return None
        made.append(Fake(length))
        return made[-1]

    def place(heap: Fake, size: int) -> int | None:
        if sum(heap.blocks) + size > heap.length:
            return None
        heap.blocks.append(size)
        return size

    return Heaps(create, place, lambda heap: sum(heap.blocks), heap_bytes=1000), made


def test_blocks_share_a_heap_until_it_is_full():
    heaps, made = make()
    for size in (400, 400, 300, 200):
        assert heaps.take(size) == size
    assert [heap.blocks for heap in made] == [[400, 400, 200], [300]]
    assert heaps.bytes_reserved() == 2000


def test_a_large_block_has_a_heap_of_its_size():
    heaps, made = make()
    heaps.take(5000)
    assert made[0].length == 5000


def test_no_memory_is_none():
    heaps, _ = make(limit=2000)
    assert heaps.take(3000) is None
    assert heaps.take(100) == 100


def test_empty_heaps_go():
    heaps, made = make()
    heaps.take(900)
    heaps.take(900)
    made[0].blocks.clear()
    assert heaps.trim() == 1000
    assert heaps.bytes_reserved() == 1000
    assert heaps.trim() == 0
