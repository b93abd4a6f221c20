"""The arrangement of buffers with known lifetimes in one block of memory.

Buffers that are never in use at the same time may overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 256


@dataclass(frozen=True)
class Lifetime:
    """A buffer that is used from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaLayout:
    """Where each buffer lies in an arena, and the size of the arena, in bytes."""

    offsets: tuple[int, ...]
    size: int


def arrange(lifetimes: Sequence[Lifetime]) -> ArenaLayout:
    """Place the largest first, each at the lowest offset that is free during its lifetime.

    >>> from lbrx.memory.arena import Lifetime, arrange
    >>> arrange([Lifetime(1024, 0, 1), Lifetime(512, 1, 2), Lifetime(1024, 2, 3)])
    ArenaLayout(offsets=(0, 1024, 0), size=1536)
    """
    offsets = [0] * len(lifetimes)
    placed: dict[int, list[int]] = {}  # by the steps that they live in
    size = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        lifetime = lifetimes[index]
        life = range(lifetime.first, lifetime.last + 1)
        met = {i for step in life for i in placed.get(step, ())}
        taken = sorted((offsets[i], offsets[i] + lifetimes[i].size) for i in met)
        place = 0
        for start, end in taken:
            if place + lifetime.size <= start:
                break
            place = max(place, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets[index] = place
        size = max(size, place + lifetime.size)
        for step in life:
            placed.setdefault(step, []).append(index)
    return ArenaLayout(tuple(offsets), size)
