"""Bytes of a file, mapped when they are first read."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from lbrx.errors import FormatError
from lbrx.storage.array import Bytes
from lbrx.storage.lazy import LazyStorage


class MmapStorage(LazyStorage):
    """A read-only range of a file, which is opened at the first access."""

    def __init__(self, path: str | os.PathLike[str], offset: int = 0, nbytes: int | None = None):
        self.path = Path(path)
        self.offset = offset
        size = self.path.stat().st_size
        length = size - offset if nbytes is None else nbytes
        if min(offset, length) < 0 or offset + length > size:
            raise FormatError(
                f"{self.path} has {size} bytes, not {length} from {offset} on: "
                "the file is cut short or its header is wrong"
            )
        super().__init__(length, self._map)
        self._pages: mmap.mmap | None = None

    def _map(self) -> Bytes:
        if self._nbytes == 0:
            empty = np.empty(0, np.uint8)
            empty.flags.writeable = False
            return empty
        # A mapping starts on a page.
        start = self.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        inside = self.offset - start
        with self.path.open("rb") as file:
            self._pages = mmap.mmap(
                file.fileno(), inside + self._nbytes, access=mmap.ACCESS_READ, offset=start
            )
        return np.frombuffer(self._pages, np.uint8, self._nbytes, inside)

    def forget(self, offset: int, nbytes: int) -> None:
        """Drop a range from memory. The next access reads the file again."""
        if self._pages is None:
            return
        inside = self.offset % mmap.ALLOCATIONGRANULARITY + offset
        first = inside // mmap.PAGESIZE * mmap.PAGESIZE
        last = min(inside + nbytes, len(self._pages))
        if last > first:
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)

    def __repr__(self) -> str:
        return f"<MmapStorage of {self._nbytes} bytes at {self.offset} of {self.path}>"
