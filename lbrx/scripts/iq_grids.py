"""Write lbrx/src/lbrx/quant/gguf/grids.bin from the tables in the PyPI package `gguf`."""

from __future__ import annotations

from pathlib import Path

import gguf.quants
import numpy as np

from lbrx.quant.gguf import grids

TARGET = Path(grids.__file__).with_name("grids.bin")


def bits_of(name: str, book: grids.CodeBook) -> bytes:
    """One bit for each possible point of a book."""
    codec = getattr(gguf.quants, "IQ1_S" if name == "iq1" else name.upper())
    codec.init_grid()
    points = codec.grid.reshape(book.entries, book.length)
    coordinates = np.searchsorted(book.values, points)
    numbers = coordinates @ len(book.values) ** np.arange(book.length)
    assert np.all(np.diff(numbers) > 0), f"{name} is not in ascending order"
    present = np.zeros(book.points, bool)
    present[numbers] = True
    return np.packbits(present, bitorder="little").tobytes()


def packed() -> bytes:
    return b"".join(bits_of(name, book) for name, book in grids.BOOKS.items())


if __name__ == "__main__":
    TARGET.write_bytes(packed())
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
