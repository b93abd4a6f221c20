"""The codes of ProRes coefficients, as tables that kernels look up.

A code is a number of zeros followed by a one: at most `switch` zeros begin a Rice code, more an
exponential Golomb code. Which code comes next depends on the value before it. A table has one
entry for each pattern of its first bits: the value, the bits it takes, and the next table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Codebook:
    """The parameters of a code."""

    switch: int  # the most zeros of a Rice code
    exponent: int  # order of the exponential Golomb code
    rice: int  # order of the Rice code

    @property
    def packed(self) -> int:
        """The parameters in a byte, as kernels take them."""
        return self.rice << 5 | self.exponent << 2 | self.switch

    def decode(self, bits: int, count: int) -> tuple[int, int] | None:
        """Value and length of the code that starts `count` bits; None if it is longer."""
        zeros = count - bits.bit_length()
        if zeros <= self.switch:
            length = zeros + 1 + self.rice
            base = (zeros << self.rice) - (1 << self.rice)
        else:
            length = 2 * zeros + self.exponent - self.switch
            base = (self.switch + 1 << self.rice) - (1 << self.exponent)
        if length > count:
            return None
        return base + (bits >> count - length), length


def _books(*parameters: tuple[int, int, int]) -> tuple[Codebook, ...]:
    return tuple(Codebook(*each) for each in parameters)


FIRST_DC = Codebook(0, 6, 5)
DC_BOOKS = _books(
    *((0, 1, 0), (0, 2, 1), (0, 2, 1), (1, 3, 2), (1, 3, 2), (0, 4, 3), (0, 4, 3)),
)
"""By the value before, at most 6."""
RUN_BOOKS = _books(
    *[(2, 1, 0)] * 2, *[(1, 1, 0)] * 2, (0, 1, 0), *[(1, 2, 1)] * 4, *[(0, 2, 1)] * 6, (0, 3, 2)
)
"""By the run before, at most 15."""
LEVEL_BOOKS = _books(
    *((0, 1, 0), (2, 2, 0), (1, 1, 0), (2, 1, 0), (0, 1, 0)), *[(0, 2, 1)] * 4, (0, 3, 2)
)
"""By the magnitude of the level before, at most 9."""

FIRST_RUN, FIRST_LEVEL = 4, 2  # the values before the first ones
RUN_BITS, LEVEL_BITS = 9, 10  # bits that a table is indexed by
HEADER = 64  # entries before the tables
RUN_STARTS, LEVEL_STARTS, DC_START = 0, 16, 32  # in the header

# Fields of an entry: see prores_entropy.h.
LENGTH_BITS = 6
NEXT_BITS = 10  # the start of the next table in units of NEXT_UNIT
NEXT_UNIT = 64


def scans() -> NDArray[np.uint8]:
    """Where the coefficients of a block lie, in the order of their codes: progressive and
    interlaced, by rows of the block and by columns."""
    by_rows = np.array([_PROGRESSIVE, _INTERLACED], np.uint8)
    return np.stack([by_rows, by_rows % 8 * 8 + by_rows // 8])


@cache
def code_tables() -> NDArray[np.uint32]:
    """The header and the tables of runs and levels.

    The header has the starts of the tables of runs by the run before and of levels by the level
    before, and the packed codebooks of DC coefficients.
    """
    header = np.zeros(HEADER, np.uint32)
    run_starts, at = _starts(RUN_BOOKS, RUN_BITS, HEADER)
    level_starts, _ = _starts(LEVEL_BOOKS, LEVEL_BITS, at)
    header[RUN_STARTS : RUN_STARTS + len(RUN_BOOKS)] = run_starts
    header[LEVEL_STARTS : LEVEL_STARTS + len(LEVEL_BOOKS)] = level_starts
    header[DC_START : DC_START + len(DC_BOOKS)] = [book.packed for book in DC_BOOKS]
    runs = [_run_table(book, run_starts) for book in dict.fromkeys(RUN_BOOKS)]
    levels = [_level_table(book, level_starts) for book in dict.fromkeys(LEVEL_BOOKS)]
    return np.concatenate([header, *runs, *levels])


def packed_books() -> NDArray[np.uint32]:
    """The codebooks as the encoder takes them: of runs, levels and DC coefficients, each at the
    place that the header of the tables has for it."""
    books = np.zeros(HEADER, np.uint32)
    for start, kind in (
        (RUN_STARTS, RUN_BOOKS),
        (LEVEL_STARTS, LEVEL_BOOKS),
        (DC_START, DC_BOOKS),
    ):
        books[start : start + len(kind)] = [book.packed for book in kind]
    return books


def _starts(books: tuple[Codebook, ...], bits: int, at: int) -> tuple[list[int], int]:
    """Where the table of each codebook starts, equal ones at the same place; and the end."""
    places = {book: at + (i << bits) for i, book in enumerate(dict.fromkeys(books))}
    return [places[book] for book in books], at + (len(places) << bits)


def _run_table(book: Codebook, starts: list[int]) -> NDArray[np.uint32]:
    """Entries have the distance to the next coefficient, which is the run plus 1."""
    table = np.empty(1 << RUN_BITS, np.uint32)
    for bits in range(len(table)):
        found = book.decode(bits, RUN_BITS)
        if found is None:
            table[bits] = _entry(book.packed, 0, 0)
        else:
            run, length = found
            table[bits] = _entry(run + 1, length, starts[min(run, len(starts) - 1)])
    return table


def _level_table(book: Codebook, starts: list[int]) -> NDArray[np.uint32]:
    """Entries have the level with its sign, which is the bit behind the code."""
    table = np.empty(1 << LEVEL_BITS, np.uint32)
    for bits in range(len(table)):
        found = book.decode(bits >> 1, LEVEL_BITS - 1)
        if found is None:
            table[bits] = _entry(book.packed, 0, 0)
        else:
            value, length = found
            negative = bits >> LEVEL_BITS - 1 - length & 1
            level = -value - 1 if negative else value + 1
            table[bits] = _entry(level, length + 1, starts[min(value + 1, len(starts) - 1)])
    return table


def _entry(value: int, length: int, following: int) -> int:
    """A length of 0 marks a longer code, whose codebook is then the value."""
    assert following % NEXT_UNIT == 0
    low = following // NEXT_UNIT << LENGTH_BITS | length
    return (value & 0xFFFF) << 16 | low


_PROGRESSIVE = (
    *(0, 1, 8, 9, 2, 3, 10, 11, 16, 17, 24, 25, 18, 19, 26, 27),
    *(4, 5, 12, 20, 13, 6, 7, 14, 21, 28, 29, 22, 15, 23, 30, 31),
    *(32, 33, 40, 48, 41, 34, 35, 42, 49, 56, 57, 50, 43, 36, 37, 44),
    *(51, 58, 59, 52, 45, 38, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63),
)
_INTERLACED = (
    *(0, 8, 1, 9, 16, 24, 17, 25, 2, 10, 3, 11, 18, 26, 19, 27),
    *(32, 40, 33, 34, 41, 48, 56, 49, 42, 35, 43, 50, 57, 58, 51, 59),
    *(4, 12, 5, 6, 13, 20, 28, 21, 14, 7, 15, 22, 29, 36, 44, 37),
    *(30, 23, 31, 38, 45, 52, 60, 53, 46, 39, 47, 54, 61, 62, 55, 63),
)
