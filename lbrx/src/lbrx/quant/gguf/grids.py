"""The code books of the IQ types: sets of points, each a run of small integers.

A book is a subset of all points {0 .. levels-1} ** length in ascending order, where the first
coordinate is the least significant. `grids.bin` has one bit for each possible point, lowest bit
first, one book after the other, each starting at a new byte.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class CodeBook(NamedTuple):
    entries: int
    length: int
    values: tuple[int, ...]
    """The values of coordinates 0, 1 and so on."""

    @property
    def points(self) -> int:
        return int(len(self.values) ** self.length)


_STEPS_OF_2 = (8, 25, 43)
BOOKS = {
    "iq2_xxs": CodeBook(256, 8, _STEPS_OF_2),
    "iq2_xs": CodeBook(512, 8, _STEPS_OF_2),
    "iq2_s": CodeBook(1024, 8, _STEPS_OF_2),
    "iq3_xxs": CodeBook(256, 4, (4, 12, 20, 28, 36, 44, 52, 62)),
    "iq3_s": CodeBook(512, 4, (1, 3, 5, 7, 9, 11, 13, 15)),
    "iq1": CodeBook(2048, 8, (-1, 0, 1)),
}


@cache
def grid(name: str) -> NDArray[np.float32]:
    """The book's points, [entries, length]."""
    packed = Path(__file__).with_name("grids.bin").read_bytes()
    at = 0
    for other, book in BOOKS.items():
        size = -(-book.points // 8)
        if other == name:
            break
        at += size
    bits = np.unpackbits(np.frombuffer(packed, np.uint8, size, at), bitorder="little")
    numbers = np.flatnonzero(bits)
    coordinates = numbers[:, None] // len(book.values) ** np.arange(book.length)
    values = np.array(book.values, np.float32)
    return values.take(coordinates % len(book.values))
